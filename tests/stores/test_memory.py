from __future__ import annotations

import pytest

from intervalq.testing import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"

from __future__ import annotations

import pytest

from intervalq.testing import TaskSuite, WakingTaskSuite


class TestNATSTaskStore(TaskSuite, WakingTaskSuite):
    steps = 10
    left_out = ()

    @pytest.fixture
    def store_url(self, nats_url: str) -> str:
        return nats_url

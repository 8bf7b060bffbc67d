"""Fixtures that every test may ask for: real servers, a quiet environment."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_store_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERVALQ_STORE", raising=False)

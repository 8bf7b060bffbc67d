"""`intervalq://` is a store like any other: it passes the suites over other stores, too.

By hand, over any store: INTERVALQ_TEST_BEHIND=postgresql://... pytest tests/service/test_remote_suites.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from intervalq.testing import LedgerSuite, ScheduleSuite, StoreSuite, TaskSuite, WakingTaskSuite
from service.processes import QUIET, Served


@pytest.fixture(scope="module")
def over_redis(redis_url: str) -> Iterator[str]:
    with Served(redis_url, "--http", "none", program=QUIET) as service:
        yield service.url


class TestQueues(StoreSuite):
    steps = 8

    @pytest.fixture
    def store_url(self, remote_url: str) -> str:
        return remote_url


class TestTasks(TaskSuite, WakingTaskSuite):
    steps = 12
    tells_outcomes = False

    @pytest.fixture
    def store_url(self, remote_url: str) -> str:
        return remote_url


class TestLedgers(LedgerSuite):
    steps, rounds = 15, 6

    @pytest.fixture
    def store_url(self, remote_url: str) -> str:
        return remote_url


class TestSchedulesOverRedis(ScheduleSuite):
    rounds = 6

    @pytest.fixture
    def store_url(self, over_redis: str) -> str:
        return over_redis

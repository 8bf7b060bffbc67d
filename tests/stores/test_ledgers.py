from __future__ import annotations

from pathlib import Path

import pytest

from intervalq.testing import LedgerSuite


class TestRedis(LedgerSuite):
    @pytest.fixture
    def store_url(self, redis_url: str) -> str:
        return redis_url


class TestValkey(LedgerSuite):
    @pytest.fixture
    def store_url(self, valkey_url: str) -> str:
        return valkey_url


class TestCluster(LedgerSuite):
    @pytest.fixture
    def store_url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url


class TestSQLite(LedgerSuite):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/new%20folder/app.db"


class TestPostgres(LedgerSuite):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestPgBouncer(LedgerSuite):
    steps, rounds = 15, 10

    @pytest.fixture
    def store_url(self, pgbouncer_url: str) -> str:
        return pgbouncer_url


class TestMemory(LedgerSuite):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"


class TestJSON(LedgerSuite):
    steps, rounds = 10, 5

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/new%20folder/state.json"

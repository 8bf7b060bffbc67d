from __future__ import annotations

import json
from pathlib import Path

import anyio
import psycopg
import pytest

from intervalq import IntervalQueue
from intervalq.errors import CorruptState, VersionMismatch
from intervalq.store import open_store, scheduling
from intervalq.testing import ScheduleSuite


class TestMemory(ScheduleSuite):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"


class TestJSON(ScheduleSuite):
    rounds = 5

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/new%20folder/state.json"


class TestSQLite(ScheduleSuite):
    rounds = 5

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/new%20folder/state.db"


class TestRedis(ScheduleSuite):
    @pytest.fixture
    def store_url(self, redis_url: str) -> str:
        return redis_url


class TestValkey(ScheduleSuite):
    @pytest.fixture
    def store_url(self, valkey_url: str) -> str:
        return valkey_url


class TestCluster(ScheduleSuite):
    @pytest.fixture
    def store_url(self, redis_cluster_url: str) -> str:
        return redis_cluster_url


class TestPostgres(ScheduleSuite):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestPgBouncer(ScheduleSuite):
    rounds = 5

    @pytest.fixture
    def store_url(self, pgbouncer_url: str) -> str:
        return pgbouncer_url


class TestNATS(ScheduleSuite):
    rounds = 5

    @pytest.fixture
    def store_url(self, nats_url: str) -> str:
        return nats_url


def test_many_make_the_tables_at_the_same_moment_and_a_newer_schema_is_refused(
    empty_postgres_url: str,
) -> None:
    """A schema that is dropped while it is in use is made again."""
    won: list[bool] = []

    async def begin() -> None:
        store = open_store(empty_postgres_url)
        won.append((await scheduling(store).swap_schedule("s", None, "1")).done)
        await store.aclose()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(begin)
        assert sorted(won) == [False] * 5 + [True]
        store = open_store(empty_postgres_url)
        assert (await scheduling(store).read_schedules()).texts == {"s": "1"}
        with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
            admin.execute("drop schema intervalq cascade")
            assert (await scheduling(store).read_schedules()).texts == {}
            admin.execute("update intervalq.schedules_version set number = 2")
        await store.aclose()
        with pytest.raises(
            VersionMismatch, match=r"schedules of schema intervalq have version 2.* 1: upgrade"
        ):
            await scheduling(store).read_schedules()

    anyio.run(main)


@pytest.mark.parametrize("name", ["state.json", "state.db"])
def test_schedules_and_queues_share_a_file(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        store = open_store(str(tmp_path / name))
        async with IntervalQueue("q", interval="1ms", store=store) as queue:
            await queue.run(anyio.lowlevel.checkpoint)
        assert (await scheduling(store).swap_schedule("s", None, "{}")).done
        assert await store.names() == ["q"]
        assert (await scheduling(store).read_schedules()).texts == {"s": "{}"}
        await store.aclose()

    anyio.run(main)


def test_a_file_with_other_schedules_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"intervalq": 1, "queues": {}, "schedules": {"s": 1}}))
    before = path.read_bytes()

    async def main() -> None:
        store = scheduling(open_store(str(path)))
        for call in (store.read_schedules(), store.swap_schedule("s", None, "{}")):
            with pytest.raises(CorruptState, match="schedules"):
                await call

    anyio.run(main)
    assert path.read_bytes() == before

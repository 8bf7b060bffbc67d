from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, aclosing

import anyio
import anyio.lowlevel
import psycopg
import pytest
from anyio.from_thread import BlockingPortal

from intervalq import errors, rules
from intervalq.rules import Advance, Command, Configure, Drop, Finish, Hold, Inspect, Resume, Settings
from intervalq.store import Store, Waking
from intervalq.testing import StoreSuite
from intervalq.testing._suite import in_portal
from intervalq_stores.postgres.queues import PostgresStore
from stores import postgres_sessions
from stores.postgres_sessions import caught, sql

SECOND = Settings(interval=1_000_000)
NEW = Advance(settings=SECOND, nonce="n", take=1)

url = postgres_sessions.url


class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestThroughPgBouncer(StoreSuite):
    steps = 12  # the SQL is the same as without a pooler

    @pytest.fixture
    def store_url(self, pgbouncer_url: str) -> str:
        return pgbouncer_url

    # The SQL is the same here; without a pooler it is compared with the rules in all small states.
    test_slots_are_given_back_as_by_the_rules_in_all_small_states = None  # type: ignore[assignment]

    @in_portal
    async def test_an_end_of_a_hold_wakes_every_listener(
        self, store: Store, queue: Callable[[], str]
    ) -> None:
        """LISTEN doesn't work through a pooler: a listener hears nothing, but may still ask."""
        name = queue()
        assert isinstance(store, Waking)
        await store.apply(name, NEW)
        await store.apply(name, Hold())
        async with store.wakeups(name) as one, store.wakeups(name) as two:
            assert (await store.apply(name, Resume())).woken
            for woken in (one, two):
                with anyio.move_on_after(0) as scope:
                    await woken()
                assert scope.cancelled_caught

    def test_no_connection_of_the_pool_listens(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str], store_url: str
    ) -> None:
        self.test_an_end_of_a_hold_wakes_every_listener(portal=portal, store=store, queue=queue)
        with ExitStack() as open_transactions:  # as many as the pool has: each gets its own
            for _ in range(10):
                shared = open_transactions.enter_context(psycopg.connect(store_url, prepare_threshold=None))
                assert shared.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)


async def test_every_step_is_a_hot_update(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        for turn in range(300):
            await store.apply(f"q{turn % 3}", NEW)
        assert store._pool.idle
        await store._pool.idle[0].execute("select pg_stat_force_next_flush()")
        counts = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'queues'"
        [(updates, hot)] = sql(url, counts)
    assert updates == 297
    assert hot > 0.9 * updates


@pytest.mark.parametrize(
    "harm",
    [
        *("current = ticket + 1", "generation = ''", "due = 9007199254740992", "version = 0", "version = 7"),
        *("late_total = -1", "error = -1", "error_until = 9007199254740992"),
        *("running = '{1}'", "running = '{-1}', leases = '{1}'", "running = '{1}', leases = '{null}'"),
    ],
)
async def test_a_record_that_is_not_ours_is_refused_and_left_as_it_is(url: str, harm: str) -> None:
    kind = errors.VersionMismatch if harm == "version = 7" else errors.CorruptState
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        sql(url, f"update intervalq.queues set {harm}")
        before = sql(url, "select q::text from intervalq.queues q")
        for command in (NEW, Inspect(), Finish(), Drop()):
            assert type(await caught(store.apply("q", command))) is kind
        assert sql(url, "select q::text from intervalq.queues q") == before
        assert (await store.apply("other", NEW)).count == 1


async def test_numbers_that_no_record_holds_are_not_written(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        before = await store.apply("q", NEW, 1_000)
        for huge in (2**53, 2**63, 2**70):
            assert isinstance(await caught(store.apply("q", Configure(interval=huge))), errors.CorruptState)
        assert await store.apply("q", Inspect(), 1_000) == rules.apply(before.state, Inspect(), 1_000)[1]


async def test_a_command_of_a_newer_version_is_refused(url: str) -> None:
    class Dance(Command):
        pass

    async with aclosing(PostgresStore(url)) as store:
        with pytest.raises(errors.VersionMismatch):
            await store.apply("q", Dance(settings=SECOND, nonce="n"))
        assert await store.names() == []


async def test_a_new_record_makes_room_by_removing_idle_ones_that_are_ephemeral(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        for number in range(40):
            keyed = Settings(interval=1_000_000, ephemeral=number % 2 == 0, max_running=1)
            take = Advance(settings=keyed, nonce="n", take=1, reach=10, lease=1_000)
            await store.apply(f"q:{number}", take, 5_000_000)
        for _ in range(60):  # each looks at one page of the table, at random
            await store.apply("new", NEW)
            await store.apply("new", Drop())
        assert set(await store.names()) == {f"q:{number}" for number in range(1, 40, 2)}

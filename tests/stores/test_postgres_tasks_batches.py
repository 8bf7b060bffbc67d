"""Batches and shared keys on Postgres: what several transactions do at the same moment, or don't see."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import psycopg
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    DAY,
    SECOND,
    Beat,
    Cancel,
    Change,
    Command,
    Delete,
    Depend,
    Insert,
    Modify,
    Row,
    Select,
    Work,
)
from intervalq_stores.postgres import _pool
from intervalq_stores.postgres._task.statements import uuid_of
from intervalq_stores.postgres.tasks import PostgresTaskStore
from stores import postgres_sessions
from stores.postgres_sessions import begun, caught, sql, until

url = postgres_sessions.url
store = postgres_sessions.store
SNAPSHOTS = pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])


def _batch(last: str, *parts: str, more: tuple[Insert, ...] = ()) -> Modify:
    """Parts in queue `q`, and more of them, and a follow-up in `then`."""
    inserts = (*(Insert("q", "0", part, follow_up=last) for part in parts), *more)
    return Modify(inserts=(Insert("then", "0", last, awaits=len(inserts)), *inserts))


def _shared(*ids: str, most: int = 2) -> Modify:
    return Modify(inserts=tuple(Insert("q", "0", id_, key="k", per_key=most) for id_ in ids))


async def _left(store: PostgresTaskStore, last: str) -> tuple[int, bool]:
    [row] = await store.apply(Select(ids=(last,)))
    return row.awaits, row.ready is not None


async def _claim(store: PostgresTaskStore, queue: str = "q", who: str = "s") -> list[Row]:
    rows = (await store.apply(Work(who, queues=(queue,), limit=100))).claimed
    return sorted(rows, key=lambda row: row.id)


def _ends(*rows: Row) -> tuple[Delete, ...]:
    return tuple(Delete(row.id, row.version) for row in rows)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_an_end_that_is_rolled_back_is_not_counted(store: PostgresTaskStore, isolation: Any) -> None:
    await begun(store, "s")
    await store.apply(_batch("last", "a", "b"))
    [one, two] = await _claim(store)

    async def undone() -> None:
        async with store.transaction(isolation) as mine:
            await mine.apply(Modify("s", deletes=_ends(one, two)))
            raise errors.InvalidOption("so says its user")

    assert isinstance(await caught(undone()), errors.InvalidOption)
    assert await _left(store, "last") == (2, False)
    await store.apply(Work("s", _ends(one)))
    assert await _left(store, "last") == (1, False)
    async with store.transaction(isolation) as mine:
        await mine.apply(Modify("s", deletes=_ends(two)))
    assert await _left(store, "last") == (0, True)


@SNAPSHOTS
async def test_of_two_ends_that_do_not_see_each_other_one_is_a_conflict(
    store: PostgresTaskStore, isolation: Any
) -> None:
    """Otherwise both would count down from the same number, and the follow-up would wait for ever."""
    await begun(store, "s")
    await store.apply(_batch("last", "a", "b"))
    [one, two] = await _claim(store)

    async def late() -> None:
        async with store.transaction(isolation) as mine:
            await mine.connection.execute("select count(*) from intervalq.tasks")  # its snapshot
            await store.apply(Work("s", _ends(one)))
            await mine.apply(Modify("s", deletes=_ends(two)))

    assert isinstance(await caught(late()), errors.TransactionConflict)
    assert await _left(store, "last") == (1, False)
    assert (await store.apply(Work("s", _ends(two)))).lost == ()
    assert [row.id for row in await _claim(store, "then")] == ["last"]


async def test_an_end_that_waits_for_another_one_counts_down_from_what_that_left(
    store: PostgresTaskStore, url: str
) -> None:
    """If it counted down from what it read before, the follow-up would wait for ever."""
    await begun(store, "s")
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "kept": {"keep_for": DAY}, "keyed": {"key": "k"}}
    for last, more in kinds.items():
        parts = [Insert("q", "0", f"{last}{n}", follow_up=last, **more) for n in range(1, 3)]
        await store.apply(_batch(last, "first", more=(*parts[:1], parts[1]._replace(key=None))))
        [one, two, three] = await _claim(store)
        async with anyio.create_task_group() as group, store.transaction("read committed") as mine:
            await mine.apply(Modify("s", deletes=_ends(one)))
            group.start_soon(store.apply, Work("s", _ends(two)))
            await until(lambda: sql(url, "select pid from pg_locks where not granted"))
        assert await _left(store, last) == (1, False)
        await store.apply(Work("s", _ends(three)))
        assert await _left(store, last) == (0, True)


@pytest.mark.parametrize(
    ("held", "rest", "begun_ones"),
    [
        (b"select from intervalq.tasks where own = 'b' for update", (), ("b",)),
        (b"select from intervalq.tasks where own = 'k' for update", ("k",), ()),
        (b"select pg_advisory_xact_lock(intervalq._lock('k', 'q', 'k'))", ("k",), ()),
    ],
    ids=["begun", "ended", "line"],
)
async def test_an_end_locks_the_follow_up_last(
    store: PostgresTaskStore, url: str, held: bytes, rest: tuple[str, ...], begun_ones: tuple[str, ...]
) -> None:
    """The session that has locked the rest may want the follow-up next: they would block each other."""
    await begun(store, "s")
    await store.apply(_batch("last", "a", "b", more=(Insert("q", "0", "k", "k", follow_up="last"),)))
    rows = {row.id: row for row in await _claim(store)}
    command = Work("s", _ends(*(rows[id_] for id_ in ("a", *rest))), begun=begun_ones)
    async with anyio.create_task_group() as group, store.transaction("read committed") as mine:
        await mine.connection.execute(held)
        group.start_soon(store.apply, command)
        await until(lambda: sql(url, "select pid from pg_locks where not granted"))
        await mine.connection.execute("select from intervalq.tasks where own = 'last' for update nowait")
    assert await _left(store, "last") == (2 - len(rest), False)


async def test_many_sessions_end_parts_of_the_same_batches_at_once(store: PostgresTaskStore) -> None:
    """They end in all ways at the same moment, in opposite orders: each counts once, and none is refused."""
    lasts = ("last1", "last2")
    for last in lasts:
        keyed = tuple(Insert("q", "0", f"{last}-k{n}", f"k{n}", follow_up=last) for n in range(6))
        await store.apply(_batch(last, *(f"{last}-{n}" for n in range(18)), more=keyed))
    names = [f"s{n}" for n in range(4)]
    for name in names:
        await begun(store, name)
    shares = [await _few(store, name) for name in names]
    assert sum(map(len, shares)) == 36 + 6

    async def end(name: str, rows: list[Row]) -> None:
        for at in range(0, len(rows), 4):
            if at % 8:
                await store.apply(Cancel(tuple(row.id for row in rows[at : at + 4])))
                ends = tuple(Delete(row.id, row.version + 1) for row in rows[at : at + 4])
            else:
                ends = _ends(*rows[at : at + 4])
            assert (await store.apply(Work(name, ends))).lost == ()

    async with anyio.create_task_group() as group:
        for number, (name, rows) in enumerate(zip(names, shares, strict=True)):
            group.start_soon(end, name, rows[:: -1 if number % 2 else 1])
    for last in lasts:
        left = sum(row.follow_up == last for row in await store.apply(Select(queue="q")))
        assert await _left(store, last) == (left, not left)
    await end("s0", await _claim(store, who="s0"))
    assert {row.id for row in await _claim(store, "then", "s1")} == {*lasts}


@pytest.fixture
def unrepeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that the server ends because of a deadlock is an error at once."""
    monkeypatch.setattr(_pool, "_TURNS", 1)


def _sorted(*ids: str) -> list[str]:
    return sorted(ids, key=uuid_of)


async def _waiting(url: str, count: int) -> None:
    asked = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    await until(lambda: len(sql(url, asked)) == count)


@pytest.mark.usefixtures("unrepeated")
@pytest.mark.parametrize("named", ["changed", "cancelled", "depended on"])
async def test_a_follow_up_is_locked_after_the_tasks_that_it_waits_for(
    store: PostgresTaskStore, url: str, named: str
) -> None:
    """This holds even if its id comes first: the end of a task learns of its follow-up only by locking it."""
    await begun(store, "s")
    last, one, two = _sorted("a", "b", "c")
    await store.apply(_batch(last, one, two))
    changes = (Change(one, 0, error="x"), Change(last, 0, error="x"))
    commands = {
        "changed": Modify(force=True, changes=changes),
        "depended on": Modify(force=True, changes=changes[:1], depends=(Depend(last, 0),)),
        "cancelled": Cancel((one, last)),
    }
    rows = await _claim(store)
    async with anyio.create_task_group() as group:
        with psycopg.connect(url) as other:
            other.execute("select from intervalq.tasks where own = %s for update", (two,))
            group.start_soon(store.apply, Work("s", _ends(*rows)))  # has the first one
            await _waiting(url, 1)
            group.start_soon(_refused_or_done, store, commands[named])
            await _waiting(url, 2)
    assert await store.apply(Select(queue="q")) == ()


async def _refused_or_done(store: PostgresTaskStore, command: Command[Any]) -> None:
    with contextlib.suppress(errors.DependencyError):
        await store.apply(command)


@pytest.mark.usefixtures("unrepeated")
async def test_ends_and_changes_of_claims_are_locked_in_the_order_of_their_ids(
    store: PostgresTaskStore, url: str
) -> None:
    """They are locked after their lines, whatever the order of rows or command, as a cancel does it."""
    await begun(store, "s")
    ids = _sorted("a", "b", "c", "d")[::-1]
    keyed, three, two, one = ids
    for ends in ("ends", "changes", "begun", "keyed"):
        await store.apply(
            Modify(
                inserts=tuple(
                    Insert("q", "0", id_, "k" if ends == "keyed" and id_ == keyed else None) for id_ in ids
                )
            )
        )
        rows = {row.id: row for row in await _claim(store)}
        last, first = rows[three], rows[one]
        settled: tuple[Delete | Change, ...] = (*_ends(last, first),)
        if ends == "changes":
            settled = (*_ends(last), Change(first.id, first.version, delay=0))
        elif ends == "begun":
            settled = _ends(last)
        elif ends == "keyed":
            settled = _ends(last, rows[keyed])
        async with anyio.create_task_group() as group:
            with psycopg.connect(url) as other:
                other.execute("select from intervalq.tasks where own = %s for update", (two,))
                group.start_soon(store.apply, Cancel((one, two, three, keyed)))  # has the first one
                await _waiting(url, 1)
                group.start_soon(store.apply, Work("s", settled, begun=(one,) if ends == "begun" else ()))
                await _waiting(url, 2)
        await store.apply(Work("s", tuple(Delete(row.id, row.version + 1) for row in rows.values())))
        assert await store.apply(Select()) == ()


@pytest.mark.usefixtures("unrepeated")
async def test_two_that_depend_on_what_the_other_one_changes_do_not_wait_for_each_other(
    store: PostgresTaskStore, url: str
) -> None:
    one, two, three = _sorted("a", "b", "c")
    await store.apply(Modify(inserts=tuple(Insert("q", "0", id_) for id_ in (one, two, three))))
    async with anyio.create_task_group() as group:
        with psycopg.connect(url) as other:
            other.execute("select from intervalq.tasks where own = %s for update", (two,))
            for mine, its in ((three, one), (one, three)):
                changes = (Change(mine, 0, error=mine), Change(two, 0, error=mine))
                group.start_soon(store.apply, Modify(force=True, changes=changes, depends=(Depend(its, 0),)))
            await _waiting(url, 2)
    assert [row.version for row in await store.apply(Select(ids=(one, two, three)))] == [1, 2, 1]


async def test_a_heartbeat_does_not_wait_for_a_follow_up(store: PostgresTaskStore, url: str) -> None:
    """Nor does it wait for a second one while it has locked the first of another session's tasks."""
    await begun(store, "s", expiry=10 * SECOND)
    await begun(store, "t")
    await store.apply(_batch("last", "a", "b"))
    await _claim(store)
    await store.apply(Cancel(("a",)))
    [beaten] = sql(url, "select max(beaten) from intervalq.beats")
    later = beaten[0] + 11 * SECOND
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks where own = 'last' for update")
        assert (await store.apply(Beat("t"), later)).lapsed == ("s",)
        assert await _left(store, "last") == (2, False)
    await store.apply(Beat("t"), later)
    assert await _left(store, "last") == (1, False)


async def test_who_wakes_others_does_not_wait_for_one_that_becomes_idle(
    store: PostgresTaskStore, url: str
) -> None:
    """That one may be about to wake a session of the queue for which this one has become idle."""
    await begun(store, "s", "t")
    await store.apply(Modify(inserts=(Insert("q", "0", "a"),)))
    [row] = await _claim(store)
    async with store.wakeups("t") as woken:
        with psycopg.connect(url) as other:
            other.execute("select pg_advisory_xact_lock(intervalq._queue_lock('then'))")
            await store.apply(Work("s", (Change(row.id, row.version, queue="then"),)))
            await woken()


async def _few(store: PostgresTaskStore, who: str) -> list[Row]:
    rows = (await store.apply(Work(who, queues=("q",), limit=11))).claimed
    return sorted(rows, key=lambda row: row.id)


# --- keys that several tasks share --------------------------------------------------------------------


async def test_no_more_of_a_key_than_may_run_join_without_seeing_each_other(store: PostgresTaskStore) -> None:
    """Both would take the second place."""
    await store.apply(_shared("a"))

    async def late() -> None:
        async with store.transaction("repeatable read") as mine:
            await mine.connection.execute("select count(*) from intervalq.tasks")  # its snapshot
            await store.apply(_shared("b"))
            await mine.apply(_shared("c"))

    assert isinstance(await caught(late()), errors.TransactionConflict)
    await begun(store, "s")
    await store.apply(_shared("c"))
    assert [row.id for row in await _claim(store)] == ["a", "b"]


async def test_the_next_ones_of_a_key_are_fed_by_one_who_cannot_see_them(store: PostgresTaskStore) -> None:
    await begun(store, "s")
    await store.apply(_shared("a", "b"))
    running = await _claim(store)
    async with store.transaction("repeatable read") as mine:
        await mine.connection.execute("select count(*) from intervalq.tasks")  # its snapshot
        await store.apply(_shared("c", "d", "e"))
        await mine.apply(Modify("s", deletes=_ends(*running)))
    assert [row.id for row in await _claim(store)] == ["c", "d"]


@pytest.mark.parametrize("most", [1, 2])
async def test_one_who_joins_before_those_that_run_does_not_run_with_them(
    store: PostgresTaskStore, most: int
) -> None:
    """Its place comes from a line as it was long ago: it is before others, which are claimed by now."""
    await begun(store, "s")
    lines = [[f"{word}{n}" for n in range(most)] for word in ("first", "next", "running")]
    await store.apply(_shared(*lines[0], most=most))
    async with store.transaction("repeatable read") as mine:
        await mine.connection.execute("select count(*) from intervalq.tasks")  # its snapshot
        await store.apply(_shared(*lines[1], *lines[2], most=most))
        running: list[Row] = []
        for line in lines:
            await store.apply(Work("s", _ends(*running)))
            running = await _claim(store)
            assert [row.id for row in running] == line
        await mine.apply(_shared("late", most=most))
    await store.apply(_shared("more", most=most + 1))  # it may run, but is behind one that waits
    assert await _claim(store) == []
    await store.apply(Work("s", _ends(running[0])))
    assert [row.id for row in await _claim(store)] == ["late", "more"]


async def test_one_who_joins_before_those_that_run_waits_even_if_they_share_the_key_no_longer(
    store: PostgresTaskStore, url: str
) -> None:
    """The task that allowed two at a time is gone. Nobody has put the line in order yet."""
    await begun(store, "s")
    await store.apply(_shared("a", most=1))
    async with await psycopg.AsyncConnection.connect(url) as own:
        await own.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await own.execute("select count(*) from intervalq.tasks")  # its snapshot
        await store.apply(_shared("b", "c", "d", most=1))
        await store.apply(_shared("two"))
        [first] = await _claim(store)
        await store.apply(Work("s", _ends(first)))
        second, third = await _claim(store)
        await store.apply(Work("s", _ends(second)))
        [fourth] = await _claim(store)
        await store.apply(Cancel(("two",)))
        await store.apply_on(own, _shared("late", most=1))
    assert (third.id, fourth.id) == ("c", "d")
    await store.apply(Work("s", _ends(third)))
    assert await _claim(store) == []
    await store.apply(Work("s", _ends(fourth)))
    assert [row.id for row in await _claim(store)] == ["late"]

"""Outcomes on Postgres beyond what every store does: slots that are emptied, and inserts from SQL."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import psycopg
import pytest

from intervalq.tasks.rules import (
    DAY,
    DONE,
    FAILED,
    SECOND,
    Beat,
    Begin,
    Delete,
    Insert,
    Kept,
    Modify,
    Outcomes,
    Session,
    Work,
)
from intervalq.tasks.store import Isolation
from intervalq_stores.postgres._task.statements import Asked
from intervalq_stores.postgres.tasks import PostgresTaskStore
from stores import postgres_sessions
from stores.postgres_sessions import ME, sql
from stores.watched import Watched

url = postgres_sessions.url
store = postgres_sessions.store

START = 12_345 * DAY


async def done(store: PostgresTaskStore, id_: str, keep_for: int, now: int, *, begins: int = 2) -> None:
    """Do a task that is kept for this time."""
    await store.apply(Begin(Session("s", "host", 7, expiry=1000 * DAY)), now)
    await store.apply(Modify(inserts=(Insert("q", "1", id_, keep_for=keep_for),)), now)
    (row,) = (await store.apply(Work("s", queues=("q",), limit=1, begins=begins), now)).claimed
    kept = Kept(keep_for, '"\\u0000"')
    assert (await store.apply(Work("s", (Delete(id_, row.version, kept),)), now)).lost == ()


async def left(store: PostgresTaskStore, now: int) -> list[str]:
    return [one.id for one in await store.apply(Outcomes(queue="q"), now)]


async def test_an_end_of_what_had_not_begun_counts_as_an_attempt(store: PostgresTaskStore) -> None:
    await done(store, "a", DAY, START, begins=0)
    (one,) = await store.apply(Outcomes(ids=("a",)), START)
    assert (one.attempts, one.result, one.state) == (1, '"\\u0000"', DONE)


async def test_the_longer_it_is_kept_the_longer_its_slot_stays(store: PostgresTaskStore, url: str) -> None:
    """It is emptied once no outcome can be in it any more, which leaves no dead rows and no pages."""
    start = START
    for days, width in ((1, 1), (8, 1), (9, 8), (64, 8), (65, 64), (400, 64)):
        await done(store, "a", days * DAY, start)
        [(table,)] = sql(url, "select tableoid::regclass::text from intervalq.outcomes")
        over = ((start // DAY + days) // width + 1) * width * DAY
        await store.apply(Beat("s"), over - 1)
        assert await left(store, start) == ["a"]
        await store.apply(Beat("s"), over)
        assert await left(store, start) == []
        assert sql(url, f"select pg_relation_size('{table}')") == [(0,)]
        assert sql(url, "select count(*) from intervalq.outcome_periods") == [(0,)]
        start = over


async def test_a_slot_that_has_later_outcomes_loses_only_those_that_are_over(
    store: PostgresTaskStore,
) -> None:
    """Nobody worked for days, so that nobody emptied it before it was its turn again."""
    for number in range(2):
        await done(store, f"t{number}", DAY, START + number * 10 * DAY)
    await store.apply(Beat("s"), START + 10 * DAY)
    assert await left(store, START) == ["t1"]
    await store.apply(Beat("s"), START + 12 * DAY)
    assert await left(store, START) == []


async def test_nobody_waits_for_a_slot_that_somebody_reads(store: PostgresTaskStore, url: str) -> None:
    for days in (1, 2):  # two waits would take longer than a call may
        await done(store, f"t{days}", days * DAY, START)
    with psycopg.connect(url) as reader:
        reader.execute("select from intervalq.outcomes")
        assert (await store.apply(Beat("s"), START + 3 * DAY)).alive
        assert sorted(await left(store, START)) == ["t1", "t2"]
    await store.apply(Beat("s"), START + 3 * DAY)
    assert await left(store, START) == []


async def test_who_waits_for_outcomes_leaves_nothing_behind(store: PostgresTaskStore, url: str) -> None:
    """Two waiters in one process end only their own waits; rows of a dead one are swept after a day."""
    rows = "select count(*) from intervalq.awaited"
    async with store.awaited(["a", "b"]):
        async with store.awaited(["b"]):
            assert sql(url, rows) == [(3,)]
        assert sql(url, rows) == [(3,)]
    assert sql(url, rows) == [(0,)]
    sql(url, "select intervalq.await_outcomes('died', array[gen_random_uuid()], %s)", START)
    assert sql(url, rows) == [(1,)]
    async with store.awaited(["a"]):
        assert sql(url, rows) == [(1,)]


async def test_many_who_wait_share_a_few_statements(
    store: PostgresTaskStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that come while a statement is under way share the next; cancelling one ends no other."""
    ask, asked, come = store._ask, Counter[bytes](), 0

    async def counted(what: Asked) -> Any:
        asked[what.sql] += 1
        return await ask(what)

    monkeypatch.setattr(store._awaited, "_ask", counted)
    all_come = anyio.Event()

    async def wait(number: int) -> None:
        nonlocal come
        async with store.awaited([f"t{number}"]):
            come += 1
            if come == 100:
                all_come.set()
            await all_come.wait()

    async with anyio.create_task_group() as group, anyio.create_task_group() as cancelled:
        cancelled.start_soon(wait, -1)
        for number in range(100):
            group.start_soon(wait, number)
        await anyio.lowlevel.checkpoint()
        cancelled.cancel_scope.cancel()
    assert max(asked.values()) <= 10, asked  # of a hundred; how many come meanwhile is up to the machine
    assert sql(url, "select count(*) from intervalq.awaited") == [(0,)]


async def test_who_leaves_while_the_store_is_busy_leaves_nothing_behind(
    store: PostgresTaskStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller leaves at once, and its row is removed all the same."""
    monkeypatch.setattr("intervalq_stores.postgres._task.awaited._PARTING", 0.0)
    async with store._turns:
        async with store.awaited(["a"]):
            await store._turns.acquire()  # the last one
        assert sql(url, "select count(*) from intervalq.awaited") == [(1,)]
        store._turns.release()
        monkeypatch.undo()
        await store.aclose()
    assert sql(url, "select count(*) from intervalq.awaited") == [(0,)]


async def test_an_end_costs_no_more_after_many_have_waited(store: PostgresTaskStore, url: str) -> None:
    """Their rows stay as dead ones for as long as anybody has an old snapshot."""
    tasks = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(3)]
    await store.apply(Modify(inserts=tuple(Insert("q", "1", task, keep_for=DAY) for task in tasks)))
    cancel = "explain (analyze, buffers, format json) select intervalq.cancel(array[%s]::uuid[], null)"
    with psycopg.connect(url) as connection:
        pages = []
        for task in tasks:  # the first one reads the functions, too
            [[[plan]]] = connection.execute(cancel, (task,)).fetchall()
            pages.append(plan["Plan"]["Shared Hit Blocks"])
            if len(pages) == 2:
                many = "select gen_random_uuid(), n, '' from generate_series(1, 20000) as n"
                connection.execute(f"insert into intervalq.awaited {many}")
                connection.execute("delete from intervalq.awaited")
    assert pages[2] < pages[1] + 100, pages


async def test_with_and_without_a_limit_the_order_is_the_same(store: PostgresTaskStore) -> None:
    """Also of what one statement wrote, in several slots."""
    await store.apply(Begin(Session("s", expiry=60 * SECOND)))
    for turn in range(2):
        inserts = tuple(Insert("q", "1", f"{turn}{n}", keep_for=(n % 2 * 8 + 1) * DAY) for n in range(6))
        await store.apply(Modify(inserts=inserts))
        claimed = (await store.apply(Work("s", queues=("q",), limit=6))).claimed
        await store.apply(Work("s", tuple(Delete(row.id, row.version, Kept(0, "1")) for row in claimed)))
    latest = await store.apply(Outcomes(queue="q"))
    assert [one.id[0] for one in latest] == ["1"] * 6 + ["0"] * 6
    for limit in range(14):
        for state in (None, DONE):
            assert await store.apply(Outcomes(state=state, limit=limit)) == latest[:limit]
    assert await store.apply(Outcomes(ids=tuple(one.id for one in latest))) == latest[::-1]


async def test_a_look_by_state_reads_only_those_in_that_state(store: PostgresTaskStore, url: str) -> None:
    """Each of 3,000 outcomes is of a statement of its own, as workers leave them that aren't busy."""
    await done(store, "last", DAY, START)
    columns = "slot, queue, state, json, result, attempts, errors, created, started, ended, host, pid, until"
    sql(
        url,
        f"insert into intervalq.outcomes (id, number, together, {columns})"
        " select g.id, nextval('intervalq.outcome_numbers'), array[g.id], o.* from"
        f" (select gen_random_uuid() as id from generate_series(1, 3000)) as g, (select {columns} from"
        " intervalq.outcomes) as o",
    )
    watched = Watched(url)
    try:
        for state, limit, found, pages in ((FAILED, 9, 0, 400), (DONE, 9, 9, 100), (None, 9, 9, 100)):
            watched.plans.clear()
            look = "select from intervalq.outcomes_of(null, null, %s, %s, %s)"
            assert len(watched.connection.execute(look, [state, limit, START]).fetchall()) == found
            assert watched.buffers() < pages
            assert len(watched.plans) < 9
    finally:
        watched.connection.close()


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
async def test_an_end_in_a_transaction_is_told_also_after_the_connection_was_lost(
    store: PostgresTaskStore, url: str, isolation: Isolation
) -> None:
    """A serializable transaction notifies all waiters, and doesn't conflict with new ones."""
    await store.apply(Begin(Session("s", expiry=60 * SECOND)))
    await store.apply(Modify(inserts=(Insert("q", "1", "a", keep_for=DAY),)))
    (row,) = (await store.apply(Work("s", queues=("q",), limit=1))).claimed
    async with store.awaited(["a"]) as notified:
        sql(url, f"select pg_terminate_backend(pid) {ME} and query = 'listen intervalq_ended'")
        await notified()
    async with store.transaction(isolation) as transaction:
        await transaction.connection.execute("select from intervalq.tasks")
        async with store.awaited(["a"]) as notified:
            await transaction.apply(Modify("s", deletes=(Delete(row.id, row.version),)))
            async with store.awaited(["b"]):
                pass
            await transaction.connection.execute("commit")
            await notified()
            await transaction.connection.execute("begin")
    assert await store.apply(Outcomes(ids=("a",)))


async def test_what_sql_inserts_may_be_kept(store: PostgresTaskStore, url: str) -> None:
    await store.apply(Begin(Session("s", expiry=60 * SECOND)))
    [(id_,)] = sql(url, "select intervalq.enqueue('q', '1', keep => '7 days')")
    (row,) = (await store.apply(Work("s", queues=("q",), limit=1))).claimed
    assert row.keep_for == 7 * DAY
    await store.apply(Work("s", (Delete(row.id, row.version),)))
    (one,) = await store.apply(Outcomes(ids=(id_,)))
    assert one.until - one.ended == 7 * DAY
    for keep in ("1 ms", "401 days"):
        with pytest.raises(psycopg.DataError, match="one second to 400 days"):
            sql(url, f"select intervalq.enqueue('q', '1', keep => '{keep}')")

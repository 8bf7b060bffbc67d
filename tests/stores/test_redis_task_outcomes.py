"""Outcomes of kept tasks on Redis: the keys of their days, pages, and what is refused in time."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Final

import pytest

from intervalq import errors
from intervalq.tasks._spec.outcome import with_error
from intervalq.tasks.rules import (
    CANCELLED,
    DAY,
    DONE,
    FAILED,
    SECOND,
    Beat,
    Begin,
    Cancel,
    Change,
    Delete,
    End,
    Insert,
    Kept,
    Modify,
    Outcomes,
    Select,
    Session,
    Work,
)
from intervalq_stores.redis.tasks import RedisTaskStore
from servers import Server
from stores import redis_sessions
from stores.redis_sessions import INDEX, KEYS, META, begun, claim, deleted, inserts

server = redis_sessions.server
client = redis_sessions.client
store = redis_sessions.store

TODAY: Final = 20_000
NOW: Final = TODAY * DAY + DAY // 4


def keys_of(client: Any) -> set[str]:
    """What and of which day each key of outcomes is."""
    names = [key.decode().rpartition("}:")[2] for key in client.keys("*")]
    return {name for name in names if name[-1].isdigit()}


async def test_who_waits_for_outcomes_leaves_nothing_behind(store: RedisTaskStore, client: Any) -> None:
    """Two waiters in one process end only their own waits; entries of a dead one are swept after a day."""

    def rows() -> int:
        return sum(one[:1] in b"ab" for one in client.zrange(INDEX, 0, -1))

    async with store.awaited(["a", "b"]):
        async with store.awaited(["b"]):
            assert rows() == 6
        assert rows() == 6
    assert rows() == 0
    day_ago = client.time()[0] * SECOND - DAY
    await store._ask("await", ["died", "d"], day_ago - 1, KEYS)
    assert rows() == 2
    async with store.awaited(["a"]):
        assert rows() == 2


async def test_an_end_is_told_also_after_the_connection_was_lost(store: RedisTaskStore, client: Any) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", keep_for=DAY))
    async with store.awaited(["a"]) as notified:
        client.client_kill_filter(_type="pubsub")
        await notified()
    async with store.awaited(["a"]) as notified:
        await store.apply(Work("s", deleted(await claim(store, "s"))))
        await notified()
    assert await store.apply(Outcomes(ids=("a",)))


async def test_a_day_is_dropped_when_it_is_over_or_expires_by_itself(
    store: RedisTaskStore, client: Any
) -> None:
    await begun(store, "s", expiry=1000 * DAY)
    for days in (0, 3):
        await store.apply(inserts(f"a{days}", f"b{days}", keep_for=days * DAY + SECOND))
    rows = await claim(store, "s", 4)
    await store.apply(Work("s", deleted(rows)), NOW)
    both = (TODAY, TODAY + 3)
    assert keys_of(client) == {f"{what}:{day}" for what in ("outcomes", "ended") for day in both}
    for day in both:
        for what in ("outcomes", "ended"):
            rest = (day + 2) * DAY - NOW - 1000 * client.pttl(f"intervalq:{{tasks}}:{what}:{day}")
            assert 0 <= rest < 600 * SECOND
    await store.apply(Beat("s"), (TODAY + 1) * DAY - 1)
    assert len(keys_of(client)) == 4
    await store.apply(Beat("s"), (TODAY + 1) * DAY)
    assert keys_of(client) == {f"outcomes:{TODAY + 3}", f"ended:{TODAY + 3}"}
    await store.apply(Beat("s"), (TODAY + 4) * DAY)
    await store.apply(End("s"))
    assert {key: client.exists(key) for key in KEYS} == {**dict.fromkeys(KEYS, 0), META: 1}


async def test_several_days_that_are_over_are_dropped_together(store: RedisTaskStore, client: Any) -> None:
    """A command that also leaves an outcome drops them."""
    await begun(store, "s", expiry=1000 * DAY)
    await store.apply(Modify(inserts=tuple(Insert("q", "1", f"{n}", keep_for=n * DAY) for n in range(1, 21))))
    await store.apply(Work("s", deleted(await claim(store, "s", 20))), NOW)
    assert len(keys_of(client)) == 40
    await store.apply(Begin(Session("t", expiry=1)), NOW)
    await store.apply(inserts("lapses", keep_for=30 * DAY))
    await claim(store, "t")
    await store.apply(Cancel(("lapses",)))
    assert (await store.apply(Beat("s"), NOW + 19 * DAY)).lapsed == ("t",)
    left = {f"{what}:{TODAY + n}" for what in ("outcomes", "ended") for n in (19, 20, 49)}
    assert keys_of(client) == left
    assert len(client.zrangebylex(INDEX, b"[o", b"(p")) == 3


async def test_a_broken_outcome_is_named_as_such(store: RedisTaskStore, client: Any) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", keep_for=DAY))
    await store.apply(Work("s", deleted(await claim(store, "s"))), NOW)
    key = f"intervalq:{{tasks}}:outcomes:{TODAY + 1}"
    whole = client.hget(key, "a")
    for broken in (b"", b"x", whole[:-1], whole + b"x", b"\3" + whole[1:]):
        client.hset(key, "a", broken)
        for command in (Outcomes(ids=("a",)), Outcomes()):
            if broken:
                with pytest.raises(errors.CorruptState, match="outcome"):
                    await store.apply(command, NOW)
            else:
                assert await store.apply(command, NOW) == ()
    client.hset(key, "a", whole)
    client.delete(key.replace("outcomes", "ended"))
    client.set(key.replace("outcomes", "ended"), "mine")
    await store.apply(inserts("b", keep_for=DAY))
    with pytest.raises(errors.CorruptState):
        await store.apply(Work("s", deleted(await claim(store, "s"))), NOW)
    assert len(await store.apply(Select())) == 1


async def test_a_command_names_the_keys_of_its_days(
    store: RedisTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent once more if its days aren't those of the last ones."""
    sent = 0
    run = store._server.run

    async def counted(*arguments: Any) -> Any:
        nonlocal sent
        sent += 1
        return await run(*arguments)

    await begun(store, "s")
    await store.apply(Modify(inserts=tuple(Insert("q", "1", f"{n}", keep_for=n * DAY) for n in range(1, 31))))
    await store.apply(inserts(*(f"one day {n}" for n in range(6)), keep_for=DAY))
    rows = {row.id: row for row in await claim(store, "s", 40)}
    monkeypatch.setattr(store._server, "run", counted)
    counts = []
    for part in (
        ["one day 0"],
        ["one day 1", "one day 2"],
        ["2", "one day 3"],
        ["one day 4", "2"],
        [str(n) for n in range(3, 31)],
        ["one day 5", "1"],
    ):
        before = sent
        await store.apply(Work("s", deleted(tuple(rows[id_] for id_ in part if id_ in rows))), NOW)
        for id_ in part:
            rows.pop(id_, None)
        counts.append(sent - before)
    assert counts == [2, 1, 2, 1, 2, 2]
    assert {one.until for one in await store.apply(Outcomes(), NOW)} == {NOW + n * DAY for n in range(1, 31)}


async def test_outcomes_come_in_pages_without_a_gap(store: RedisTaskStore) -> None:
    """Of 1,300 tasks, three failed; one of these has another outcome, many pages later."""
    await begun(store, "s")
    ids = [f"t{n}" for n in range(1300)]
    for first in (0, 700):
        await store.apply(inserts(*ids[first : first + 700], keep_for=DAY))
    rows = {row.id: row for _ in range(2) for row in await claim(store, "s", 1000)}

    async def fails(id_: str, now: int) -> None:
        change = Change(id_, rows[id_].version, queue="q.dead", error="no")
        await store.apply(Work("s", (change,)), now)

    await fails("t0", NOW)
    await fails("t1", NOW + 1)
    await store.apply(Cancel(("t0",)), NOW + 2)  # it was dead, so it leaves no more
    for n in range(2, 1300, 100):
        if n == 602:
            await fails("t602", NOW + n)
        some = [id_ for id_ in ids[n : n + 100] if id_ != "t602"]
        done = (Delete(id_, rows[id_].version, Kept(0, f'"{id_}"')) for id_ in some)
        await store.apply(Work("s", tuple(done)), NOW + n)
    await store.apply(Modify(changes=(Change("t1", rows["t1"].version + 1, queue="q"),)), NOW + 2001)
    (again,) = await claim(store, "s")
    await store.apply(Work("s", (Delete("t1", again.version),)), NOW + 2002)

    all_of = await store.apply(Outcomes(), NOW)
    assert [one.ended for one in all_of] == sorted((one.ended for one in all_of), reverse=True)
    assert len(all_of) == 1301
    assert {one.id for one in all_of} == set(ids)
    assert all(one.result == f'"{one.id}"' for one in all_of if one.state == DONE and one.id != "t1")
    for limit in (0, 1, 2, 499, 500, 501, 1300, 2000):
        assert [one.ended for one in await store.apply(Outcomes(limit=limit), NOW)] == [
            one.ended for one in all_of[:limit]
        ]
    for most in (1, 2, 3, None):
        failed = await store.apply(Outcomes(state=FAILED, queue="q", limit=most), NOW)
        assert [one.id for one in failed] == ["t602", "t1", "t0"][:most]
    assert await store.apply(Outcomes(state=CANCELLED), NOW) == ()
    assert await store.apply(Outcomes(queue="other"), NOW) == ()
    assert await store.apply(Outcomes(), NOW + 2 * DAY) == ()


async def test_the_errors_of_a_task_end_where_those_of_the_rules_do(store: RedisTaskStore) -> None:
    """The limit is in characters, not bytes."""
    await begun(store, "s")
    await store.apply(inserts("a", keep_for=DAY), NOW)
    long, expected = "ü" * 9_000, ""
    for attempt in range(1, 7):
        (row,) = await claim(store, "s")
        assert row.errors == expected
        change = Change(row.id, row.version, delay=0, attempt=attempt, error=long)
        assert (await store.apply(Work("s", (change,)), NOW)).lost == ()
        expected = with_error(expected, long, attempt, NOW)
    assert 4 * 9_000 < len(expected) < 5 * 9_000


async def test_without_the_rights_to_lists_nothing_is_written(
    store: RedisTaskStore, server: Server, client: Any
) -> None:
    await begun(store, "s")
    await store.apply(inserts("a", keep_for=DAY))
    (row,) = await claim(store, "s")
    client.acl_setuser(
        "older", enabled=True, passwords=["+old"], keys=["*"], channels=["*"], categories=["+@all", "-@list"]
    )
    async with aclosing(RedisTaskStore(server.url.replace("redis://", "redis://older:old@"))) as older:
        with pytest.raises(errors.Unauthorized):
            await older.apply(Work("s", deleted((row,))))
    assert await store.apply(Select()) == (row,)
    assert await store.apply(Outcomes()) == ()
    assert keys_of(client) == set()

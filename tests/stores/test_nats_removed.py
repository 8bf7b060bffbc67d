"""Tasks on NATS that somebody removes from the stream while they are claimed: their workers learn of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest

from intervalq.errors import StoreUnavailable
from intervalq.tasks.rules import Change, Delete, Row
from intervalq_stores.nats._connection import Connection, NobodyThereError
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._task import holdings, settle
from intervalq_stores.nats._task.delivery import Delivery
from intervalq_stores.nats._task.message import PREFIX, STREAM, matches
from intervalq_stores.nats._task.stream import Stream
from intervalq_stores.nats.tasks import NATSTaskStore
from servers import Server
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, ids_in, inserts, settled

store = nats_sessions.store
opened = nats_sessions.opened


async def asked(url: str, verb: str, body: object = None) -> Any:
    """The server's answer to a client without intervalq."""
    client = await nats.connect(url)
    try:
        text = b"" if body is None else json.dumps(body).encode()
        answer = json.loads((await client.request(f"$JS.API.{verb}", text)).data)
    finally:
        await client.close()
    assert "error" not in answer, answer
    return answer


def wildcard(queue: str) -> str:
    return f"{PREFIX}.w.{encoded(queue)}.>"


HOW: dict[str, Callable[[Row], tuple[str, object]]] = {
    "deleted": lambda row: (f"STREAM.MSG.DELETE.{STREAM}", {"seq": row.version}),
    "queue": lambda row: (f"STREAM.PURGE.{STREAM}", {"filter": wildcard(row.queue)}),
    "until": lambda row: (
        f"STREAM.PURGE.{STREAM}",
        {"filter": wildcard(row.queue), "seq": row.version + 1},
    ),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("key", [None, "key"])
async def test_what_was_removed_is_not_acknowledged(
    nats_url: str, opened: Open, queue: str, how: str, key: str | None
) -> None:
    store = opened()
    mine = await begun(store)
    await store.apply(inserts(queue, "other"))
    await store.apply(inserts(queue, "a", key=key))
    rows = {row.id: row for row in await claim(store, mine, queue, limit=2)}
    verb, body = HOW[how](rows["a"])
    await asked(nats_url, verb, body)
    assert await settled(store, mine, *done(rows["a"])) == ("a",)
    assert await settled(store, mine, *done(rows["other"])) == (() if how == "deleted" else ("other",))
    await store.apply(inserts(queue, "b"))
    (row,) = await claim(store, mine, queue)
    assert await settled(store, mine, *done(row)) == ()
    assert await ids_in(store, queue) == []


def before_it_leaves(
    monkeypatch: pytest.MonkeyPatch, others: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """Call a function, as another client, when the next acknowledgement is sent; nothing is read here."""
    send = Connection.send

    async def late(self: Connection, *messages: Any) -> Any:
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: asyncio.run(others()))
        thread.start()
        thread.join()
        return await send(self, *messages)

    monkeypatch.setattr(Connection, "send", late)


@pytest.mark.parametrize(
    ("how", "lost"), [("deleted", ("a",)), ("queue", ("a", "b")), ("until", ("a",)), ("elsewhere", ())]
)
async def test_what_is_removed_while_it_is_acknowledged_is_told(
    nats_url: str, opened: Open, queue: str, how: str, lost: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed before the acknowledgement is sent, and before this process has learned of that."""
    store = opened()
    mine = await begun(store)
    await store.apply(inserts(queue, "a", "b"))
    rows = await claim(store, mine, queue, limit=2)
    verb, body = HOW["queue" if how == "elsewhere" else how](rows[0])
    if how == "elsewhere":
        body = {"filter": wildcard(f"{queue}.others")}
    before_it_leaves(monkeypatch, lambda: asked(nats_url, verb, body))
    assert await settled(store, mine, *done(*rows)) == lost


async def test_who_may_not_hear_of_removals_is_told_all_the_same(
    own_nats: Callable[..., Server], tmp_path: Path, queue: str
) -> None:
    config = tmp_path / "nats.conf"
    deny = '{ subscribe: { deny: "$JS.API.>" } }'
    users = f"{{ user: a, password: p, permissions: {deny} }}, {{ user: b, password: p }}"
    config.write_text(f"authorization {{ users = [{users}] }}\nno_auth_user: b\n")
    server = own_nats("-c", str(config))
    async with aclosing(NATSTaskStore(server.url.replace("://", "://a:p@"))) as store:
        mine = await begun(store)
        await store.apply(inserts(queue, "a", "b"))
        a, b = await claim(store, mine, queue, limit=2)
        await asked(server.url, *HOW["deleted"](a))
        assert await settled(store, mine, *done(a, b)) == ("a",)
        assert await ids_in(store, queue) == []


async def test_an_acknowledgement_that_nobody_took_was_not_said(
    nats_url: str, opened: Open, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the task is gone when the acknowledgement is repeated, the acknowledgement didn't remove it."""
    store = opened()
    mine = await begun(store)
    await store.apply(inserts(queue, "a", "b"))
    a, b = await claim(store, mine, queue, limit=2)
    verb = f"CONSUMER.DELETE.{STREAM}.{encoded(queue)}"
    before_it_leaves(monkeypatch, lambda: asked(nats_url, verb))
    with pytest.raises(NobodyThereError):
        await settled(store, mine, *done(a, b))
    await asked(nats_url, *HOW["deleted"](a))
    assert await settled(store, mine, *done(a, b)) == ("a",)
    assert await ids_in(store, queue) == []


@pytest.mark.parametrize("removed", [False, True])
async def test_a_step_that_nobody_took_was_not_stored(
    own_nats: Callable[..., Server], queue: str, removed: bool
) -> None:
    url = own_nats().url
    async with aclosing(NATSTaskStore(url)) as store:
        mine = await begun(store)
        await store.apply(inserts(queue, "a", key="key"))
        (row,) = await claim(store, mine, queue)
        config = (await asked(url, f"STREAM.INFO.{STREAM}"))["config"]
        await asked(url, f"STREAM.UPDATE.{STREAM}", config | {"subjects": ["elsewhere"]})
        with pytest.raises(NobodyThereError):
            await settled(store, mine, *done(row))
        await asked(url, f"STREAM.UPDATE.{STREAM}", config)
        if removed:
            await asked(url, *HOW["deleted"](row))
        assert await settled(store, mine, *done(row)) == (("a",) if removed else ())
        assert await ids_in(store, queue) == []


async def test_of_two_whom_two_consumers_gave_a_task_one_is_told(
    nats_url: str, opened: Open, queue: str
) -> None:
    """The first consumer was deleted, and the second doesn't know what the first had delivered."""
    stores = opened(), opened()
    await stores[0].apply(inserts(queue, "a", "b"))
    sessions = [await begun(store) for store in stores]
    rows = [await claim(stores[0], sessions[0], queue, limit=2)]
    await asked(nats_url, f"CONSUMER.DELETE.{STREAM}.{encoded(queue)}")
    await stores[1].aclose()  # which makes it look again
    rows.append(await claim(stores[1], sessions[1], queue, limit=2))
    assert [row.id for row in rows[1]] == ["a", "b"]
    for turn, first in ((0, 0), (1, 1)):
        for which in (first, 1 - first):
            lost = await settled(stores[which], sessions[which], *done(rows[which][turn]))
            assert lost == (() if which == first else (rows[which][turn].id,))


async def test_a_step_that_is_stored_was_done_though_nobody_ends_it(
    store: NATSTaskStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when the message that the step replaced can't be removed at the moment."""
    mine = await begun(store)
    await store.apply(inserts(queue, "a", "b", key="key"))
    (row,) = await claim(store, mine, queue)

    async def nobody(_: int) -> bool:
        raise NobodyThereError(store.url, "no responders")

    monkeypatch.setattr(store._stream, "remove", nobody)
    with pytest.raises(StoreUnavailable) as found:
        await settled(store, mine, *done(row))
    assert not isinstance(found.value, NobodyThereError)
    monkeypatch.undo()
    (after,) = await claim(store, await begun(store), queue)
    assert after.id == "b"
    assert await settled(store, mine, *done(row)) == ()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (">", True),
        ("a.>", True),
        ("a.b.c", True),
        ("a.*.c", True),
        ("*.b.>", True),
        ("a.b.c.>", False),
        ("a.b", False),
        ("a.b.*.*", False),
        ("b.>", False),
        ("a.c.c", False),
    ],
)
def test_patterns(pattern: str, expected: bool) -> None:
    assert matches("a.b.c", pattern) is expected


@pytest.mark.parametrize("purge", [b"[]", b'{"seq": "x"}', b'{"seq": 1.5}', b'{"filter": 7}', b"x"])
@pytest.mark.parametrize("meanwhile", [False, True])
async def test_requests_that_say_nothing_harm_nobody(
    nats_url: str,
    opened: Open,
    queue: str,
    purge: bytes,
    meanwhile: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have no effect before or during an acknowledgement; one that isn't JSON purges everything."""

    async def others() -> None:
        client = await nats.connect(nats_url)
        for body in (b"", b"x", b"[]", b"{}", b'{"seq": "x"}'):
            await client.request(f"$JS.API.STREAM.MSG.DELETE.{STREAM}", body)
        await client.request(f"$JS.API.STREAM.PURGE.{STREAM}", purge)
        await client.close()

    store = opened()
    mine = await begun(store)
    await store.apply(inserts(queue, "a"))
    rows = await claim(store, mine, queue)
    if meanwhile:
        before_it_leaves(monkeypatch, others)
    else:
        await others()
    assert await settled(store, mine, *done(*rows)) == (("a",) if purge == b"x" else ())


async def test_what_is_done_in_a_call_that_fails_for_others_is_told_as_done(
    store: NATSTaskStore, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole call is repeated, also with claims with a lease, whose loss would be believed."""
    session = await begun(store)
    await store.apply(inserts(queue, "a", "b", "c"))
    rows = [row for _ in range(3) for row in await claim(store, session, queue, lease=60_000_000)]
    theirs = store._sessions[session].holdings
    theirs._revocations._since = None  # as for a client that may not subscribe to removals
    real, fails = settle.move, [True]

    async def move(stream: Stream, delivery: Delivery, part: Delete | Change, connection: Connection) -> bool:
        if delivery.row.id == "c" and fails:
            fails.clear()
            await anyio.sleep(0.2)
            raise StoreUnavailable(store.url, "no leader just now")
        return await real(stream, delivery, part, connection)

    monkeypatch.setattr(holdings, "move", move)
    with pytest.raises(StoreUnavailable):
        await settled(store, session, *done(*rows))
    assert await settled(store, session, *done(*rows)) == ()
    assert await ids_in(store, queue) == []
    assert theirs._done == set()

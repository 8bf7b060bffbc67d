"""A connection to a NATS that ends while it is in use, whose server reads slowly, or forbids something."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from nats import errors as driver

from intervalq import errors
from intervalq.tasks.rules import Begin, Insert, Modify, Session
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._url import options_of
from intervalq_stores.nats.tasks import NATSTaskStore
from servers import Server


async def test_what_is_asked_after_the_end_fails_for_its_asker_only(nats_url: str) -> None:
    """The event loop must have nothing to complain about, as it does about errors that nobody retrieved."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    connection = await Connection.connect(nats_url, options_of(nats_url))
    await connection.close()
    with pytest.raises(driver.ConnectionClosedError):
        await connection.request("$JS.API.INFO")
    with pytest.raises(driver.ConnectionClosedError):
        await connection.send([("a", b"", {})])
    with pytest.raises(driver.ConnectionClosedError):
        await connection.gather("$JS.API.INFO", b"", several=True)
    gc.collect()
    assert complaints == []


async def test_what_was_flushed_is_known_to_the_server(nats_url: str) -> None:
    """This holds even if the driver waits for the server: its ping doesn't overtake a subscription."""
    connection = await Connection.connect(nats_url, options_of(nats_url))
    other = await Connection.connect(nats_url, options_of(nats_url))
    read, drained = asyncio.Event(), asyncio.Event()
    transport: Any = connection._client._transport
    drain = transport.drain

    async def slow() -> None:
        drained.set()
        await read.wait()
        await drain()

    transport.drain = slow
    await connection.publish("flushed.before")
    await drained.wait()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    assert await connection.hear({"flushed.subject": lambda message: heard.put_nowait(message.data)})
    await other.publish("flushed.subject", b"heard")
    await other.flush()
    await connection.flush()
    assert heard.get_nowait() == b"heard"
    read.set()
    await connection.close()
    await other.close()


async def test_who_may_not_insert_tasks_is_told_so_each_time(
    own_nats: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The server sends no answer to a client without the right, and the connection stays usable."""
    settings = tmp_path / "nats.conf"
    denied = 'permissions: {publish: {deny: "intervalq.tasks.w.>"}}'
    settings.write_text(f"authorization {{ users = [{{user: me, {denied}}}] }}\nno_auth_user: me\n")
    async with aclosing(NATSTaskStore(own_nats("-c", str(settings)).url)) as store:
        await store.apply(Begin(Session("s")))
        await store._stream.consumer("q")
        connection = await store._stream.connection()
        monkeypatch.setattr(nats_server, "WITHIN", 1.0)  # enough for a busy machine
        for _ in range(2):
            with pytest.raises(errors.Unauthorized, match="allow it for this user"):
                await store.apply(Modify(inserts=(Insert("q", "1", "a"),)))
        assert store._stream.server._connection is connection

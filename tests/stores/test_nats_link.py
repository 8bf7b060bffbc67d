"""A connection to a NATS that ends while it is used, or whose other side reads slowly."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from nats import errors as driver

from intervalq_stores._nats_link import Link
from intervalq_stores._nats_url import options_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_is_asked_after_the_end_fails_for_its_asker_only(nats_url: str) -> None:
    """Nothing is left for the event loop to complain about, as it does of errors that nobody was told of."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    link = await Link.connect(nats_url, options_of(nats_url))
    await link.close()
    with pytest.raises(driver.ConnectionClosedError):
        await link.request("$JS.API.INFO")
    with pytest.raises(driver.ConnectionClosedError):
        await link.send([("a", b"", {})])
    with pytest.raises(driver.ConnectionClosedError):
        await link.gather("$JS.API.INFO", b"", several=True)
    gc.collect()
    assert complaints == []


async def test_what_was_flushed_is_known_to_the_server(nats_url: str) -> None:
    """Even where the driver waits for the other side to read: its ping doesn't overtake a subscription."""
    link = await Link.connect(nats_url, options_of(nats_url))
    other = await Link.connect(nats_url, options_of(nats_url))
    read, drained = asyncio.Event(), asyncio.Event()
    transport: Any = link._client._transport
    drain = transport.drain

    async def slow() -> None:
        drained.set()
        await read.wait()
        await drain()

    transport.drain = slow
    await link.publish("flushed.before")
    await drained.wait()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    assert await link.hear("flushed.subject", lambda message: heard.put_nowait(message.data))
    await other.publish("flushed.subject", b"heard")
    await other.flush()
    await link.flush()
    assert heard.get_nowait() == b"heard"
    read.set()
    await link.close()
    await other.close()

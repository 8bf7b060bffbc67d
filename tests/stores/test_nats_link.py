"""A connection to a NATS that ends while it is used."""

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

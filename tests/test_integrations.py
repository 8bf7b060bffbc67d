"""Queues in HTTP clients, with a local API that enforces its limit: it refuses many calls without a queue."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
import anyio
import httpx
import pytest
import requests

from intervalq import IntervalQueue
from intervalq._shard.grants import Grant, GrantRange
from intervalq.demo.api import DemoAPI
from intervalq.errors import MissingExtra, StoreUnavailable
from intervalq.integrations._pacing import heed, heed_blocking
from intervalq.integrations.aiohttp import PacedMiddleware
from intervalq.integrations.httpx import PacedTransport
from intervalq.integrations.requests import PacedAdapter
from intervalq.rules import Slot
from intervalq.sync import IntervalQueue as BlockingQueue

CODES = ["DE", "FR", "IT", "PL", "ES", "PT"]
INTERVAL, WINDOW = 0.25, 0.05
"""So far apart that even a busy machine doesn't put two calls into one window."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the backend of the API


async def by_httpx(url: str, queue: IntervalQueue | None) -> None:
    transport = httpx.AsyncHTTPTransport() if queue is None else PacedTransport(queue)
    async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as group:
        for code in CODES:
            group.start_soon(client.get, f"{url}/countries/{code}")


async def by_aiohttp(url: str, queue: IntervalQueue | None) -> None:
    paced = [] if queue is None else [PacedMiddleware(queue)]

    async def get(session: aiohttp.ClientSession, code: str) -> None:
        async with session.get(f"{url}/countries/{code}") as response:
            await response.read()

    async with aiohttp.ClientSession(middlewares=paced) as session, anyio.create_task_group() as group:
        for code in CODES:
            group.start_soon(get, session, code)


async def by_blocking_httpx(url: str, queue: IntervalQueue | None) -> None:
    transport = httpx.HTTPTransport() if queue is None else PacedTransport(queue)
    with httpx.Client(transport=transport) as client:
        await in_threads(lambda code: client.get(f"{url}/countries/{code}"))


async def by_requests(url: str, queue: IntervalQueue | None) -> None:
    with requests.Session() as session:
        if queue is not None:
            session.mount("http://", PacedAdapter(queue))
        await in_threads(lambda code: session.get(f"{url}/countries/{code}"))


async def in_threads(call: Callable[[str], object]) -> None:
    async with anyio.create_task_group() as group:
        for code in CODES:
            group.start_soon(anyio.to_thread.run_sync, call, code)


WAYS = pytest.mark.parametrize("way", [by_httpx, by_aiohttp, by_blocking_httpx, by_requests])
Way = Callable[[str, IntervalQueue | None], Awaitable[None]]


@WAYS
async def test_no_call_is_refused_with_a_queue_and_many_are_without(way: Way) -> None:
    async with DemoAPI(limit=1, window=WINDOW) as api:
        queue = IntervalQueue("integrations", interval=INTERVAL, store="memory://")
        await way(api.url, queue)
        assert api.meter.report()["accepted"] == len(CODES)
        assert api.meter.report()["rejected"] == 0
        await queue.drop()
    async with DemoAPI(limit=1, window=60) as api:
        await way(api.url, None)
        assert api.meter.report()["rejected"] == len(CODES) - 1


async def refused(way: Callable[[str], Awaitable[int]]) -> int:
    """The status that a client returns for a call that the API refuses for a minute."""
    async with DemoAPI(limit=1, window=60) as api:
        async with httpx.AsyncClient() as unpaced:
            await unpaced.get(f"{api.url}/countries/DE")
        return await way(f"{api.url}/countries/FR")


async def get_by_httpx(queue: IntervalQueue, url: str) -> int:
    async with httpx.AsyncClient(transport=PacedTransport(queue)) as client:
        return (await client.get(url)).status_code


async def get_by_aiohttp(queue: IntervalQueue, url: str) -> int:
    paced = PacedMiddleware(queue)
    async with aiohttp.ClientSession(middlewares=[paced]) as session, session.get(url) as response:
        return response.status


async def get_by_blocking_httpx(queue: IntervalQueue, url: str) -> int:
    with httpx.Client(transport=PacedTransport(BlockingQueue.of(queue))) as client:
        return (await anyio.to_thread.run_sync(client.get, url)).status_code


async def get_by_requests(queue: IntervalQueue, url: str) -> int:
    with requests.Session() as session:
        session.mount("http://", PacedAdapter(BlockingQueue.of(queue)))
        return (await anyio.to_thread.run_sync(session.get, url)).status_code


Get = Callable[[IntervalQueue, str], Awaitable[int]]
GETS = pytest.mark.parametrize("get", [get_by_httpx, get_by_aiohttp, get_by_blocking_httpx, get_by_requests])


@GETS
async def test_a_refusal_cools_the_queue_down_and_is_returned(get: Get) -> None:
    async with IntervalQueue("integrations-cool", interval=0.001, store="memory://") as queue:
        assert await refused(partial(get, queue)) == 429
        state = await queue.inspect()
        assert 30 < (state.held_until or 0) - state.now <= 60
        await queue.resume()
        await queue.drop()


async def test_a_request_may_belong_to_a_key() -> None:
    queue = IntervalQueue("integrations-keys", interval=0.001, store="memory://")

    def read(url: str, blocking: BlockingQueue) -> None:
        with httpx.Client(transport=PacedTransport(blocking, key=lambda request: request.url.host)) as client:
            client.get(url)
        with requests.Session() as session:
            session.mount("http://", PacedAdapter(blocking, key=lambda request: request.method))
            session.get(url)

    async with DemoAPI(limit=100) as api:
        url = f"{api.url}/countries/DE"
        transport = PacedTransport(queue, key=lambda request: request.url.netloc.decode())
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(url)
        paced = PacedMiddleware(queue, key=lambda request: request.url.raw_path)
        async with aiohttp.ClientSession(middlewares=[paced]) as session, session.get(url):
            pass
        await anyio.to_thread.run_sync(read, url, BlockingQueue.of(queue))
        for key in (api.url.removeprefix("http://"), "/countries/DE", "127.0.0.1", "GET"):
            assert (await queue[key].inspect()).ticket >= 1
            await queue[key].drop()


async def test_each_redirect_takes_a_slot() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        there = request.url.path == "/there"
        return httpx.Response(200 if there else 302, headers={} if there else {"Location": "/there"})

    async with IntervalQueue("integrations-redirects", interval=0.001, store="memory://") as queue:
        transport = PacedTransport(queue, httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            assert (await client.get("http://api/here")).status_code == 200
        assert (await queue.inspect()).ticket >= 2
        await queue.drop()


async def test_a_blocking_queue_is_no_queue_for_async_code() -> None:
    blocking = BlockingQueue("q", interval=1, store="memory://")
    async with httpx.AsyncClient(transport=PacedTransport(blocking)) as client:
        with pytest.raises(TypeError, match=r"needs an intervalq\.IntervalQueue"):
            await client.get("http://127.0.0.1:9/")


async def test_a_response_is_returned_though_the_queue_cannot_be_cooled_down() -> None:
    class Cut:
        called = 0

        async def _refused(self, grant: Grant, seconds: float) -> None:
            del grant
            self.called += 1
            raise StoreUnavailable("redis://h", f"no {seconds}")

    class CutBlocking:
        called = 0

        def _refused(self, grant: Grant, seconds: float) -> None:
            del grant
            self.called += 1
            raise StoreUnavailable("redis://h", f"no {seconds}")

    cut, blocking, slot = Cut(), CutBlocking(), Grant(GrantRange(Slot(1, 0), held_total=0, steps=0))
    await heed(cut, slot, 429, {"Retry-After": "3"})
    heed_blocking(blocking, slot, 429, {"Retry-After": "3"})
    await heed(cut, slot, 200, {"Retry-After": "3"})
    heed_blocking(blocking, slot, 200, {"Retry-After": "3"})
    assert (cut.called, blocking.called) == (1, 1)


def describe(request: requests.PreparedRequest) -> str | None:
    return request.method


def test_a_session_with_an_adapter_travels() -> None:
    session = requests.Session()
    session.mount("http://", PacedAdapter(BlockingQueue("q", interval=1, store="memory://"), key=describe))
    adapter = pickle.loads(pickle.dumps(session)).get_adapter("http://api")
    assert isinstance(adapter, PacedAdapter)
    assert adapter._queue.name == "q"
    assert adapter._key is describe


@pytest.mark.parametrize("client", ["httpx", "aiohttp", "requests"])
def test_a_missing_client_is_told_with_its_extra(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, f"intervalq.integrations.{client}")
    monkeypatch.delitem(sys.modules, "intervalq.integrations._httpx", raising=False)
    with pytest.raises(MissingExtra, match=rf"intervalq\[{client}\]"):
        importlib.import_module(f"intervalq.integrations.{client}")


@pytest.mark.parametrize("module", ["httpx", "openai"])
def test_httpx2_is_used_where_only_that_is_installed(module: str) -> None:
    """It has the same names, so httpx under its name shows what is imported."""
    code = f"""if True:
        import sys, httpx
        sys.modules |= {{"httpx2": httpx, "httpx": None}}
        from intervalq.integrations import {module} as made
        print(made.PacedTransport.__mro__[1] is httpx.AsyncBaseTransport)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("True", "")


def test_the_package_imports_no_client() -> None:
    code = "import sys, intervalq.integrations; print({'httpx', 'aiohttp', 'requests'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq.demo import LOOKUP, api, countries
from intervalq.demo.api import DemoAPI, Meter, serve


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    """A clock that advances when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def demo(clock: Clock) -> AsyncIterator[DemoAPI]:
    async with DemoAPI(limit=3, window=2.0, clock=clock) as demo:
        yield demo


async def send(demo: DemoAPI, *parts: bytes) -> tuple[int, dict[str, str], Any]:
    host, port = demo.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body)


async def get(demo: DemoAPI, path: str, method: str = "GET") -> tuple[int, dict[str, str], Any]:
    return await send(demo, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def lookup(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(LOOKUP), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_there_are_249_countries() -> None:
    codes = countries()
    assert len(set(codes)) == len(codes) == 249
    assert codes == sorted(codes)
    assert all(len(code) == 2 and code.isascii() and code.isupper() for code in codes)
    assert {"AF", "DE", "US", "ZW"} < set(codes)


async def test_just_as_many_calls_as_the_limit_are_accepted(demo: DemoAPI, clock: Clock) -> None:
    for number, at in enumerate((1000.0, 1000.5, 1001.25), 1):
        clock.now = at
        status, headers, body = await get(demo, "/countries/DE")
        assert (status, body) == (200, {"code": "DE", "call": number})
        assert headers["Content-Type"] == "application/json"
    for at, after in ((1001.25, "1"), (1000.9, "2"), (1001.9999, "1")):
        clock.now = at
        status, headers, body = await get(demo, "/countries/FR")
        assert (status, headers["Retry-After"]) == (429, after)
        assert body == {"error": "too many calls", "code": "FR"}
    clock.now = 1002.0  # the first call has just left the window, and rejected ones don't count
    assert (await get(demo, "/countries/FR"))[0] == 200
    assert (await get(demo, "/countries/FR"))[0] == 429


async def test_the_report_is_of_the_calls_since_the_reset(demo: DemoAPI, clock: Clock) -> None:
    assert (await get(demo, "/report"))[2] == {
        "limit": 3,
        "window": 2.0,
        "calls": 0,
        "accepted": 0,
        "rejected": 0,
        "gaps": {"min": None, "p1": None, "p50": None, "p99": None},
        "most_in_window": 0,
    }
    for at in (1.0, 2.0, 2.5, 2.75, 4.0):
        clock.now = at
        await get(demo, "/countries/DE")
    clock.now = 9.0
    report = (await get(demo, "/report?now"))[2]
    assert (report["calls"], report["accepted"], report["rejected"]) == (5, 4, 1)
    assert report["gaps"] == {"min": 0.25, "p1": 0.25, "p50": 0.5, "p99": 1.25}
    assert report["most_in_window"] == 4
    assert (await get(demo, "/reset", "POST"))[0] == 200
    assert (await get(demo, "/report"))[2]["calls"] == 0
    assert (await get(demo, "/countries/DE"))[2]["call"] == 1


def test_figures_of_a_planted_log() -> None:
    gaps = [0.001] * 2 + [0.01] * 100 + [0.02] * 96 + [5.0] * 2
    random.Random(1).shuffle(gaps)
    meter = Meter(1_000, 1.0)
    for at in accumulate(gaps, initial=0.0):
        meter.call(at)
    report = meter.report()
    assert report["gaps"] == {"min": 0.001, "p1": 0.001, "p50": 0.01, "p99": 0.02}
    assert (report["calls"], report["rejected"]) == (201, 0)


@given(gaps=st.lists(st.integers(0, 5), max_size=40), limit=st.integers(1, 4), window=st.integers(1, 7))
def test_no_window_has_more_accepted_calls_than_the_limit(gaps: list[int], limit: int, window: int) -> None:
    """No call that could have been accepted is rejected either, and `Retry-After` is right."""
    meter = Meter(limit, window)
    accepted: list[int] = []
    arrivals = list(accumulate(gaps, initial=0))
    for at in arrivals:
        recent = [other for other in accepted if at - window < other <= at]
        wait = meter.call(at)
        assert (wait == 0) == (len(recent) < limit)
        if wait:
            assert sum(at + wait - window < other for other in accepted) < limit
        else:
            accepted.append(at)
    most = max(sum(start <= at < start + window for at in arrivals) for start in arrivals)
    assert meter.report()["most_in_window"] == most


@pytest.mark.parametrize(("limit", "window"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, float("nan"))])
def test_limits_that_make_no_sense_are_refused(limit: int, window: float) -> None:
    with pytest.raises(ValueError, match="a limit is"):
        DemoAPI(limit=limit, window=window)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/countries/XX", 404),
        ("GET", "/countries/de", 404),
        ("GET", "/report/x", 404),
        ("POST", "/countries/DE", 405),
        ("GET", "/reset", 405),
    ],
)
async def test_other_requests_are_refused(demo: DemoAPI, method: str, path: str, status: int) -> None:
    assert (await get(demo, path, method))[0] == status


async def test_requests_that_are_none_are_refused(demo: DemoAPI) -> None:
    assert (await send(demo, b"\x16\x03\x01\r\n\r\n"))[0] == 400
    assert (await send(demo, b"GET /" + b"x" * 10_000))[0] == 400
    assert (await get(demo, "/report"))[2]["calls"] == 0


async def test_a_request_may_come_in_pieces(demo: DemoAPI) -> None:
    assert (await send(demo, b"GET /coun", b"tries/DE HTTP/1.1\r\n", b"\r\n"))[0] == 200


async def test_a_client_that_sends_nothing_is_let_go(demo: DemoAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_PATIENCE", 0.0)
    reader, writer = await asyncio.open_connection(*demo.url.removeprefix("http://").split(":"))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""  # it ends, without an answer or with a reset
    writer.close()


async def test_the_client_prints_the_answer(demo: DemoAPI) -> None:
    done = await asyncio.to_thread(lookup, demo.url, "DE")
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"code": "DE", "call": 1}, "")


async def test_the_client_says_when_to_ask_again(demo: DemoAPI) -> None:
    for _ in range(3):
        await get(demo, "/countries/DE")
    done = await asyncio.to_thread(lookup, demo.url, "FR")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == "FR: asked too often, ask again in 2 s\n"


async def test_the_client_says_what_is_wrong(demo: DemoAPI) -> None:
    done = await asyncio.to_thread(lookup, demo.url, "XX")
    assert (done.returncode, done.stderr) == (1, "XX: HTTP/1.1 404 Not Found\n")
    for arguments in ((), (demo.url,), ("ftp://x", "DE"), (demo.url, "D E"), ("http://x", "DE")):
        done = await asyncio.to_thread(lookup, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "usage" in done.stderr


async def test_the_client_says_that_nobody_answers() -> None:
    async with DemoAPI() as closed:
        pass
    done = await asyncio.to_thread(lookup, closed.url, "DE")
    assert done.returncode == 1
    assert "does not answer" in done.stderr


async def test_serving_goes_on_until_it_is_cancelled() -> None:
    started: asyncio.Future[DemoAPI] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(limit=1, window=60.0, started=started.set_result))
    demo = await started
    assert [(await get(demo, "/countries/DE"))[0] for _ in range(2)] == [200, 429]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ConnectionRefusedError):
        await get(demo, "/report")

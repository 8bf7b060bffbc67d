"""A server's request to wait is obeyed, however the job was started, and wherever its error hides it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._timing.retry_after import requested_wait, wait_in_response
from intervalq.errors import InvalidInterval, InvalidOption, StoreUnavailable
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq.tasks import Claim, Tasks
from intervalq.testing import virtual_time
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on


class RefusedError(Exception):
    """An error with a response, as httpx and requests raise it."""

    def __init__(self, status: int = 429, **headers: str) -> None:
        super().__init__(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.response = SimpleNamespace(status_code=status, headers=named)


class ClientError(Exception):
    """A callable whose kind (async or not) can't be seen."""


async def refused() -> None:
    raise RefusedError(Retry_After="20")


def refused_plainly() -> None:
    raise RefusedError(Retry_After="20")


async def by_run(queue: IntervalQueue) -> None:
    await queue.run(refused)


async def by_add(queue: IntervalQueue) -> None:
    await (await queue.add(refused))


async def by_add_in_a_thread(queue: IntervalQueue) -> None:
    await (await queue.add(refused_plainly))


async def by_map(queue: IntervalQueue) -> None:
    async def call(_: int) -> None:
        await refused()

    async for _ in queue.map(call, [1]):
        pass


async def by_slot(queue: IntervalQueue) -> None:
    async with queue.slot():
        await refused()


async def by_slot_with_options(queue: IntervalQueue) -> None:
    async with queue.slot(priority=1):
        await refused()


async def by_decorator(queue: IntervalQueue) -> None:
    await queue(refused)()


async def by_generator(queue: IntervalQueue) -> None:
    @queue
    async def numbers() -> AsyncGenerator[int]:
        yield 1
        await refused()

    async for _ in numbers():
        pass


async def by_error_of_the_consumer(queue: IntervalQueue) -> None:
    """An error that the consumer throws into a generator also leaves the generator."""

    @queue
    async def numbers() -> AsyncGenerator[int]:
        yield 1

    paced = numbers()
    await anext(paced)
    await paced.athrow(RefusedError(Retry_After="20"))


Way = Callable[[IntervalQueue], Awaitable[None]]
WAYS: list[Way] = [by_run, by_add, by_map, by_slot, by_slot_with_options, by_decorator, by_generator]
WAYS.append(by_error_of_the_consumer)


async def starts_beside(way: Way, **options: Any) -> tuple[float, list[float]]:
    """The time at which the server refused, and the later starts of two jobs of another handle."""
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store, **options), queue_on(FarStore(store.behind))
    with pytest.raises(RefusedError):
        await way(queue)
    refused_at = anyio.current_time()
    for n in range(2):
        await other.run(lambda n=n: starts.job(n))  # type: ignore[misc]
    return refused_at, [at for at, _ in starts.log]


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_cools_the_queue_down_for_everybody(way: Way, backend: str) -> None:
    refused_at, began = virtual_time(lambda: starts_beside(way, retry_after=True), backend=backend)
    assert 19.9 < began[0] - refused_at < 21.2
    refused_at, began = virtual_time(lambda: starts_beside(way), backend=backend)
    assert began[0] - refused_at < 1.2  # nobody asked for it


def test_a_job_in_a_thread_cools_the_queue_down() -> None:
    async def scenario() -> bool:
        queue = IntervalQueue("held", interval=0.001, store=MemoryStore(), retry_after=True)
        with pytest.raises(RefusedError):
            await by_add_in_a_thread(queue)
        return (await queue.inspect()).is_held

    assert anyio.run(scenario)


def block_by_run(queue: BlockingQueue) -> None:
    queue.run(refused_plainly)


def block_by_add(queue: BlockingQueue) -> None:
    queue.add(refused_plainly).result()


def block_by_slot(queue: BlockingQueue) -> None:
    with queue.slot():
        refused_plainly()


def block_by_decorator(queue: BlockingQueue) -> None:
    queue(refused_plainly)()


def block_by_generator(queue: BlockingQueue) -> None:
    @queue
    def numbers() -> Generator[int]:
        yield 1
        refused_plainly()

    list(numbers())


@pytest.mark.parametrize(
    "way", [block_by_run, block_by_add, block_by_slot, block_by_decorator, block_by_generator]
)
@pytest.mark.parametrize("heeds", [True, False])
def test_each_blocking_way_in_cools_the_queue_down(
    way: Callable[[BlockingQueue], None], *, heeds: bool
) -> None:
    with BlockingQueue("q", interval=0.001, store="memory://", retry_after=heeds) as queue:
        with pytest.raises(RefusedError):
            way(queue)
        state = queue.inspect()
        assert state.is_held == heeds
        assert not heeds or (state.held_until or 0) - state.now > 15
        queue.resume()
        queue.drop()


def test_a_worker_of_tasks_cools_its_queue_down() -> None:
    async def scenario() -> bool:
        pace = IntervalQueue("pace", interval=0.001, store="memory://", retry_after=True)
        async with Tasks("memory://") as tasks:

            @tasks.worker("work", queue=pace, max_attempts=1)
            async def work(_: Claim) -> None:
                await refused()

            await tasks.insert("work", 1)
            await tasks.run(until_empty=True)
        state = await pace.inspect()
        await pace.resume()
        await pace.drop()
        return state.is_held

    assert anyio.run(scenario)


# --- where the request hides ----------------------------------------------------------------------------


def caught(raise_it: Callable[[], None]) -> Exception:
    try:
        raise_it()
    except Exception as error:  # noqa: BLE001 - whichever it is
        return error
    raise AssertionError


def as_cause() -> None:
    try:
        refused_plainly()
    except RefusedError as error:
        raise ClientError from error


def as_context() -> None:
    try:
        refused_plainly()
    except RefusedError:
        raise ClientError  # noqa: B904 - that is the point


def as_hidden_context() -> None:
    try:
        refused_plainly()
    except RefusedError:
        raise ClientError from None


def in_groups() -> None:
    both = [caught(as_cause), RefusedError(503, Retry_After="30"), ValueError()]
    raise ExceptionGroup("several", [ExceptionGroup("inner", both)])


def in_a_circle() -> None:
    first, second = ClientError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    raise first


@pytest.mark.parametrize(
    ("raises", "wait"),
    [
        (refused_plainly, 20),
        (as_cause, 20),
        (as_context, 20),
        (as_hidden_context, None),
        (in_groups, 30),
        (in_a_circle, None),
    ],
)
def test_errors_behind_an_error_are_seen(raises: Callable[[], None], wait: float | None) -> None:
    assert requested_wait(caught(raises)) == wait


def soon(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5, 1.5),
        ({"Retry-After": "2"}, 2, 2),
        ({"retry-after": soon(80_000)}, 1, 80_000),
        ({"Retry-After": "nonsense", "X-RateLimit-Reset": "7"}, 7, 7),
        ({"RateLimit": '"minute";r=0;t=30, "day";r=4000;t=50000'}, 30, 30),
        ({"RateLimit": '"minute";t=30;r=0'}, 30, 30),
        ({"RateLimit": '"day";r=4000;t=50000', "RateLimit-Reset": "3"}, 3, 3),
        ({"X-RateLimit-Reset": str(time.time() + 80_000)}, 1, 80_000),
        ({"X-RateLimit-Reset": str(round((time.time() + 80_000) * 1_000))}, 1, 80_000),
        ({"x-rate-limit-reset": str(int(time.time()) + 80_000)}, 1, 80_000),
        ({"X-RateLimit-Reset-After": "0.25", "X-RateLimit-Reset": "99"}, 0.25, 0.25),
        ({"Retry-After": "1000000"}, 86_400, 86_400),
    ],
)
def test_headers_that_ask_to_wait_are_read(headers: dict[str, str], least: float, most: float) -> None:
    for status in (429, 503):
        wait = wait_in_response(status, headers)
        assert wait is not None
        assert least <= wait <= most
    assert wait_in_response(200, headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        *({"Retry-After": value} for value in ("nonsense", "9" * 400)),
        {"Retry-After": 10**400},
        {"RateLimit": "nonsense"},
        {"RateLimit-Reset": "0"},
        {"X-RateLimit-Reset": str(time.time() - 10)},
        None,
        ["Retry-After"],
    ],
)
def test_headers_that_ask_for_nothing_are_not_heeded(headers: object) -> None:
    assert wait_in_response(429, headers) is None


# --- a function decides ------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("wait", [20, 20.0, timedelta(seconds=20), "20s"])
@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_the_error_says_how_long(way: Way, wait: Any, backend: str) -> None:
    seen: list[object] = []

    def rule(error: object) -> Any:
        seen.append(error)
        return wait

    refused_at, began = virtual_time(lambda: starts_beside(way, retry_after=rule), backend=backend)
    assert 19.9 < began[0] - refused_at < 21.2
    assert [type(error) for error in seen] == [RefusedError]


@BACKENDS
@in_virtual_time
async def test_a_function_of_the_result_says_how_long(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue = queue_on(store, retry_after=lambda result: 20 if result == "slow down" else None)
    results: list[object] = [await queue.run(lambda: starts.job("fine"))]
    results.append(await (await queue.add(starts.job, "slow down")))
    await gather(lambda: queue.run(lambda: starts.job("later")))
    gaps = starts.gaps
    assert results == ["fine", "slow down"]
    assert gaps[0] < 1.2
    assert 19.9 < gaps[1] < 21.2


@pytest.mark.parametrize("result", [20, None])
def test_a_function_of_the_result_works_in_blocking_code(result: float | None) -> None:
    with BlockingQueue("q", interval=1e-3, store="memory://", retry_after=lambda wait: wait) as queue:
        assert queue.run(lambda: result) == result
        assert queue.inspect().is_held == (result is not None)
        queue.resume()
        queue.drop()


@pytest.mark.parametrize("wait", [0, -5, -0.5, timedelta(seconds=-1), None])
def test_a_wait_that_is_over_is_none(wait: Any) -> None:
    async def scenario() -> bool:
        queue = IntervalQueue("q", interval=0.001, store=MemoryStore(), retry_after=lambda _: wait)
        with pytest.raises(RefusedError):
            await queue.run(refused)
        return (await queue.inspect()).is_held

    assert not anyio.run(scenario)


def test_a_function_that_fails_is_told_together_with_the_error_of_the_job() -> None:
    async def scenario() -> None:
        queue = IntervalQueue("q", interval=0.001, store=MemoryStore(), retry_after=lambda _: "soon")
        for way in (by_run, by_slot):
            with pytest.raises(InvalidInterval, match="retry_after") as raised:
                await way(queue)
            assert isinstance(raised.value.__cause__, RefusedError)

    anyio.run(scenario)


def test_what_is_neither_yes_no_nor_a_function_is_refused() -> None:
    for nonsense in ("yes", 1, None):
        with pytest.raises(InvalidOption, match="retry_after"):
            IntervalQueue("q", interval=1, retry_after=nonsense)  # type: ignore[arg-type]


@BACKENDS
@in_virtual_time
async def test_an_unreachable_store_does_not_hide_the_error_of_the_job(backend: str) -> None:
    class Cut(FarStore):
        async def apply(self, queue: str, command: Any, now: int | None = None) -> Any:
            if type(command).__name__ == "Hold":
                raise StoreUnavailable(self.url, "it is down")
            return await super().apply(queue, command, now)

    queue = queue_on(Cut(), retry_after=True)
    for way in WAYS:
        with pytest.raises(RefusedError):
            await way(queue)


@BACKENDS
def test_a_slot_ends_though_its_cool_down_fails(backend: str) -> None:
    async def scenario() -> int | None:
        queue = queue_on(FarStore(), max_running=1, retry_after=lambda _: "soon")
        with pytest.raises(InvalidInterval):
            await by_slot(queue)
        async with queue.slot():
            return (await queue.inspect()).running

    assert virtual_time(scenario, backend=backend) == 1

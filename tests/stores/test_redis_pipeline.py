from __future__ import annotations

import asyncio
import gc
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

import servers
from faults.proxy import Fault, Proxy, proxied
from intervalq import errors
from intervalq.rules import Advance, Answer, Inspect, Settings
from intervalq.store import stopwatch
from intervalq_stores.redis import _pipeline as redis_pipeline
from intervalq_stores.redis.queues import RedisStore
from servers import Server, redis_client

KEYED = Settings(interval=1_000_000, ephemeral=True)
WITHIN = redis_pipeline.WITHIN
OwnRedis = Callable[..., Server]


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    async with proxied(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[RedisStore]:
    """A connected store behind the proxy."""
    async with aclosing(RedisStore(proxy.url)) as store:
        await store.apply("warm", Inspect())
        proxy.asked.clear()
        yield store


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances the clock of the event loop, and with it all its timers."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)

    def put_forward(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    return put_forward


def asked(proxy: Proxy, command: bytes = b"EVALSHA") -> int:
    """How many such commands have reached the proxy."""
    return b"".join(data for _, data in proxy.asked).count(b"\r\n%b\r\n" % command)


def tasks() -> list[str]:
    """The tasks of the connections."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("PipelinedConnection.", "_Pipeline."))]


class Callers:
    """Concurrent calls, each about a queue of its own, and how they ended."""

    def __init__(self, store: RedisStore, group: TaskGroup) -> None:
        self._store = store
        self._group = group
        self._name = secrets.token_hex(8)
        self.outcomes: dict[int, Answer | errors.StoreError] = {}
        self.scopes: list[anyio.CancelScope] = []

    def go(self, number: int) -> None:
        for _ in range(number):
            self.scopes.append(anyio.CancelScope())
            self._group.start_soon(self._call, len(self.scopes) - 1)

    def queue(self, number: int) -> str:
        return f"{self._name}:{number}"

    async def _call(self, number: int) -> None:
        take = Advance(settings=KEYED, nonce=f"n{number}", take=1)
        with self.scopes[number]:
            try:
                self.outcomes[number] = await self._store.apply(self.queue(number), take)
            except errors.StoreError as error:
                self.outcomes[number] = error

    def check_answered(self, *numbers: int) -> None:
        """Check that each call got the answer to its own command."""
        for number in numbers:
            answer = self.outcomes[number]
            assert isinstance(answer, Answer), answer
            assert answer.state is not None
            assert answer.state.generation == f"n{number}"


# --- many at once -----------------------------------------------------------------------------------


async def test_ten_thousand_callers_wait_for_one_round_trip(
    proxy: Proxy, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are held until all commands have arrived, so no command waits for the answer to another."""
    monkeypatch.setattr(redis_pipeline, "WITHIN", 60)  # what counts isn't how fast this machine is
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(10_000)
        await proxy.until(lambda: asked(proxy) == 10_000)
        assert not callers.outcomes
        await proxy.heal()
    callers.check_answered(*range(10_000))
    assert proxy.connections == 1


async def test_what_is_asked_in_one_turn_of_the_event_loop_leaves_in_one_piece(
    proxy: Proxy, store: RedisStore
) -> None:
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(5)
    callers.check_answered(*range(5))
    assert [data.count(b"EVALSHA") for _, data in proxy.asked] == [5]


async def test_the_text_of_a_script_is_sent_once_for_all_who_wait(
    redis_url: str, proxy: Proxy, store: RedisStore
) -> None:
    with redis_client(redis_url) as client:
        client.script_flush()
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(100)
        await proxy.until(lambda: asked(proxy) == 100)
        healed = stopwatch()
        await proxy.heal()
    callers.check_answered(*range(100))
    assert (asked(proxy, b"EVAL"), asked(proxy)) == (1, 199)
    for answer in callers.outcomes.values():
        assert isinstance(answer, Answer)
        assert answer.trip is not None
        assert healed <= answer.trip[0], "the trip is that of the command that was done"


async def test_a_trip_is_from_sending_a_command_to_its_own_answer(proxy: Proxy, store: RedisStore) -> None:
    await proxy.begin(Fault.HOLD_ANSWERS)
    between = []
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        for number in range(1, 4):
            callers.go(1)
            await proxy.until(lambda number=number: asked(proxy) == number)  # type: ignore[misc]
            between.append(stopwatch())
        await proxy.heal()
    trips = [
        answer.trip for answer in callers.outcomes.values() if isinstance(answer, Answer) and answer.trip
    ]
    sent, received = zip(*trips, strict=True)
    assert sent[0] <= between[0] <= sent[1] <= between[1] <= sent[2] <= between[2] <= received[0]
    assert list(received) == sorted(received)


async def test_nothing_runs_when_nothing_waits(proxy: Proxy, store: RedisStore) -> None:
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(10)
        await proxy.until(lambda: asked(proxy) == 10)
        assert tasks() == ["_Pipeline._read"]
        await proxy.heal()
    assert tasks() == []


# --- what ends early --------------------------------------------------------------------------------


async def test_those_who_were_not_cancelled_have_their_own_answers(proxy: Proxy, store: RedisStore) -> None:
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(50)
        await proxy.until(lambda: asked(proxy) == 50)
        for scope in callers.scopes[::3]:
            scope.cancel()
        callers.go(50)
        for scope in callers.scopes[51::3]:
            scope.cancel()
        await proxy.heal()
    left = [number for number, scope in enumerate(callers.scopes) if not scope.cancel_called]
    assert sorted(callers.outcomes) == left
    callers.check_answered(*left)
    assert (await store.apply(callers.queue(0), Inspect())).state is not None, "it was sent, so it was done"
    assert proxy.connections == 1


@pytest.mark.parametrize("fault", [Fault.END_ANSWER, Fault.RESET_ANSWER, Fault.CUT_ANSWER])
async def test_a_connection_that_ends_ends_all_calls_on_it(
    proxy: Proxy, store: RedisStore, fault: Fault
) -> None:
    await proxy.begin(Fault.HOLD_REQUESTS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(50)
        await proxy.until(lambda: asked(proxy) == 50)
        await proxy.begin(fault, once=True)
    reported = [error for error in callers.outcomes.values() if isinstance(error, errors.StoreError)]
    assert {type(error) for error in reported} == {errors.StoreUnavailable}
    assert len({id(error.__cause__) for error in reported}) == len(reported), "each has its own"
    if fault is Fault.CUT_ANSWER:  # which cuts several answers at once, the first of which are whole
        callers.check_answered(*range(50 - len(reported)))
    else:
        assert len(reported) == 50
    assert asked(proxy) == 50, "no command is sent twice"
    assert (await store.apply(callers.queue(7), Inspect())).state is not None
    assert proxy.connections == 2
    assert tasks() == []


async def test_a_late_answer_ends_all_calls_on_its_connection(
    proxy: Proxy, store: RedisStore, later: Callable[[float], None]
) -> None:
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(1)
        await proxy.until(lambda: asked(proxy) == 1)
        later(WITHIN * 0.6)
        callers.go(9)
        await proxy.until(lambda: asked(proxy) == 10)
        assert not callers.outcomes
        later(WITHIN * 0.6)
    assert [type(reported) for reported in callers.outcomes.values()] == [errors.StoreTimeout] * 10
    assert asked(proxy) == 10, "no command is sent twice"
    await proxy.heal()
    assert (await store.apply(callers.queue(7), Inspect())).state is not None
    assert proxy.connections == 2


async def test_the_time_for_an_answer_begins_when_the_command_is_sent(
    proxy: Proxy, later: Callable[[float], None]
) -> None:
    """Until then the command waits for the connection, which has a time limit of its own."""
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with aclosing(RedisStore(proxy.url)) as store, anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(3)
        await proxy.until(lambda: proxy.hits == 1)  # the beginning of the connection
        later(WITHIN * 0.6)
        await proxy.begin(Fault.HOLD_REQUESTS)
        await proxy.until(lambda: asked(proxy) == 3)
        later(WITHIN * 0.6)
        for _ in range(5):
            await checkpoint()
        await proxy.heal()
    callers.check_answered(*range(3))
    assert proxy.connections == 1


async def test_a_connection_that_can_not_be_made_in_time(
    proxy: Proxy, later: Callable[[float], None]
) -> None:
    await proxy.begin(Fault.BLACK_HOLE)
    async with aclosing(RedisStore(proxy.url)) as store, anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(3)
        await proxy.until(lambda: proxy.hits == 1)
        later(WITHIN * 1.2)
    await proxy.quiet()
    assert [type(reported) for reported in callers.outcomes.values()] == [errors.StoreTimeout] * 3


# --- closing ----------------------------------------------------------------------------------------


async def test_a_closed_store_gives_those_who_wait_their_answers(proxy: Proxy, store: RedisStore) -> None:
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(5)
        await proxy.until(lambda: asked(proxy) == 5)
        await store.aclose()
        await proxy.heal()
    callers.check_answered(*range(5))
    await proxy.quiet()
    assert tasks() == []


async def test_a_closed_store_does_not_wait_for_answers_that_nobody_wants(
    proxy: Proxy, store: RedisStore
) -> None:
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        Callers(store, group).go(5)
        await proxy.until(lambda: asked(proxy) == 5)
        group.cancel_scope.cancel()
    assert tasks() == ["_Pipeline._read"]
    await store.aclose()
    await checkpoint()
    assert tasks() == []


@pytest.mark.parametrize("closed", [False, True])
async def test_a_store_that_is_closed_while_it_connects(proxy: Proxy, closed: bool) -> None:
    store = RedisStore(proxy.url)
    await proxy.begin(Fault.HOLD_ANSWERS)
    async with anyio.create_task_group() as group:
        callers = Callers(store, group)
        callers.go(3)
        await proxy.until(lambda: proxy.hits == 1)
        for scope in callers.scopes[0 if closed else 1 :]:
            scope.cancel()
        await checkpoint()
        await store.aclose()
        for _ in range(2):  # the connecting task ends, and then those that waited for it
            await checkpoint()
        assert tasks() == ([] if closed else ["PipelinedConnection._send"])
        await proxy.heal()
    callers.check_answered(*([] if closed else [0]))
    assert asked(proxy) == (0 if closed else 1), "what was cancelled before it could be sent is not sent"
    await proxy.quiet()
    assert tasks() == []
    gc.collect()


def test_each_event_loop_has_connections_of_its_own(redis_url: str) -> None:
    """A loop that ends takes its tasks with it, even while an answer is still to come."""
    store = RedisStore(redis_url)

    async def use(patience: int) -> None:
        task = asyncio.ensure_future(store.apply("q", Inspect()))
        for _ in range(patience):
            await checkpoint()
        task.cancel()
        await asyncio.wait([task])
        await store.aclose()

    for patience in range(12):
        asyncio.run(use(patience))
        gc.collect()


# --- the driver -------------------------------------------------------------------------------------

_FIRST_USE = """
import asyncio, sys, threading

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("redis.", "hiredis")):
            found.add(threading.current_thread() is threading.main_thread())

found = set()
sys.meta_path.insert(0, Watch())

from intervalq.errors import StoreUnavailable
from intervalq.rules import Inspect
from intervalq.store import open_store

async def main():
    store = open_store(sys.argv[1])
    try:
        await asyncio.gather(*[store.apply("q", Inspect()) for _ in range(3)])
    except StoreUnavailable:
        print(found)
    await store.aclose()

asyncio.run(main())
"""


def test_the_driver_is_imported_in_a_worker_thread() -> None:
    url = f"redis://127.0.0.1:{servers.free_port()}"
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_USE, url], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "{False}", done.stderr


@pytest.mark.parametrize(
    "end", ["?db=x", "?port=x", "?ssl_min_version=x", "?ssl_include_verify_flags=[NONE_SUCH]", "/0/1"]
)
def test_a_url_is_looked_at_before_there_is_a_driver(end: str) -> None:
    with pytest.raises(errors.InvalidOption, match=re.escape("redis+cluster://host[:port]")):
        RedisStore(f"rediss://host{end}")
    RedisStore("rediss://host/3?ssl_include_verify_flags=VERIFY_X509_STRICT&ssl_min_version=771")

"""Whatever happens to the connection to a server, a call gets the right answer or a documented error."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import anyio
import pytest

from faults.proxy import Fault, Proxy, patience, proxied
from intervalq import rules
from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.rules import (
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    Finish,
    Hold,
    Inspect,
    Reclaim,
    Resume,
    Settings,
    Slot,
    State,
)
from intervalq.store import Store, Waking, open_store

CANARY: Final = "c4n4ry"
NOW: Final = 1_000_000_000
SETTINGS: Final = Settings(interval=1_000_000, max_running=3)
PREPARED: Final[tuple[Command, ...]] = (
    Advance(settings=SETTINGS, nonce="g", take=4, reach=10, lease=50_000_000),
    Hold(length=20_000_000),
)
"""The earlier life of a record: a job runs, three tickets are outstanding, and the queue is paused."""

SLOTS: Final = tuple(Slot(1 + n, NOW - 1_000_000 + n * 1_000_000) for n in range(4))
CALLS: Final[dict[str, Command]] = {
    "advance": Advance(generation="g", release=SLOTS[3:], slots=SLOTS[1:2], take=2, lease=50_000_000),
    "hold": Hold(length=30_000_000),
    "resume": Resume(),
    "configure": Configure(interval=3_000_000, burst=2),
    "reclaim": Reclaim(),
    "finish": Finish(generation="g", ended=(1,), lease=50_000_000),
    "inspect": Inspect(),
    "drop": Drop(),
}

PATIENCE: Final = 0.25
"""Seconds that a call may take whose answer can't come."""

_SILENT: Final = {
    Fault.SWALLOW,
    Fault.BLACK_HOLE,
    Fault.HOLD_REQUESTS,
    Fault.HOLD_ANSWERS,
    Fault.DRIP,
}
_DONE: Final = {Fault.RESET_ANSWER, Fault.END_ANSWER, Fault.CUT_ANSWER}
"""Faults under which the request certainly arrived."""

FAULTS: Final = [fault for fault in Fault if fault is not Fault.NONE]


@pytest.fixture(params=["redis", "valkey", "postgres", "pgbouncer"])
def server_url(request: pytest.FixtureRequest) -> str:
    """A server, and credentials that it accepts: a server without a password accepts any."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    parts = urlsplit(url)
    user = parts.username or ("postgres" if url.startswith("postgres") else "default")
    return urlunsplit(parts._replace(netloc=f"{user}:{CANARY}@{parts.hostname}:{parts.port}"))


def before() -> State:
    state: State | None = None
    for command in PREPARED:
        state, _ = rules.apply(state, command, NOW)
    assert state is not None
    return state


@dataclass
class Case:
    """One call through a proxy of its own."""

    name: str
    command: Command
    proxy: Proxy
    store: Store
    after: int = 0
    cold: bool = False
    queue: str = field(default_factory=lambda: f"p{secrets.token_hex(8)}")
    outcome: Answer | Exception | None = None
    reported: str = ""

    @property
    def other(self) -> str:
        """A queue for the next calls."""
        return f"{self.queue}.other"

    async def call(self) -> None:
        try:
            self.outcome = await self.store.apply(self.queue, self.command, NOW + 2_000)
        except Exception as error:  # noqa: BLE001 - checked later
            self.shown = "".join(traceback.format_exception(error))
            # The driver of Postgres closes a connection that it was still making when nothing refers to it.
            error.__cause__ = error.__context__ = error.__traceback__ = None
            self.outcome = error

    def named(self, requests: list[tuple[int, bytes]]) -> list[int]:
        """The connections on which requests about this queue arrived."""
        return [number for number, data in requests if self.queue.encode() in data]


@asynccontextmanager
async def cases(url: str, direct: Store) -> AsyncIterator[list[Case]]:
    """Each command on an established connection, and one command at each step of a new connection."""
    async with AsyncExitStack() as stack:

        async def case(name: str, after: int, *, cold: bool) -> Case:
            proxy = await stack.enter_async_context(proxied(url))
            store = open_store(proxy.url)
            await stack.enter_async_context(aclosing(store))
            made = Case(name, CALLS[name], proxy, store, after, cold)
            for command in PREPARED:
                await direct.apply(made.queue, command, NOW)
            if not cold:
                await store.apply(made.queue, Inspect(), NOW)
            proxy.asked.clear()
            proxy.passed.clear()
            return made

        measured = await case("advance", 0, cold=True)
        await measured.call()
        assert isinstance(measured.outcome, Answer)
        steps = len(measured.proxy.asked)
        assert steps >= 2, "a connection is made, and then used"
        yield [
            *[await case(name, 0, cold=False) for name in CALLS],
            *[await case("advance", after, cold=True) for after in range(steps)],
        ]


async def each(things: list[Any], what: Callable[..., Coroutine[Any, Any, object]]) -> None:
    async with anyio.create_task_group() as group:
        for thing in things:
            group.start_soon(what, *(thing if isinstance(thing, tuple) else (thing,)))


def judge(case: Case, fault: Fault, state: State | None) -> None:
    """The answer is that of the rules, or an error; the record is unchanged, or one step further."""
    done, answer = rules.apply(before(), case.command, NOW + 2_000)
    look = NOW + 3_000
    was = rules.apply(before(), Inspect(), look)[1].state
    once = rules.apply(done, Inspect(), look)[1].state
    if isinstance(case.outcome, Answer):
        assert case.outcome == answer
        assert state == once
    else:
        assert isinstance(case.outcome, StoreUnavailable), "nothing else lets a queue's jobs wait"
        assert CANARY not in case.shown
        assert state in (was, once)
    if not case.cold and fault in _DONE:
        assert not isinstance(case.outcome, Answer)
        assert state == once
    if not case.cold and fault is Fault.RESET_REQUEST:
        assert not isinstance(case.outcome, Answer)
        assert state == was
    if fault in _SILENT - {Fault.DRIP} and case.proxy.hits:
        assert isinstance(case.outcome, StoreTimeout)
    assert len(case.named(case.proxy.passed)) <= 1, "no command is sent twice"


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_command_has_the_right_answer_or_a_documented_error(server_url: str, fault: Fault) -> None:
    async with (
        aclosing(open_store(server_url)) as direct,
        cases(server_url, direct) as all_cases,
    ):
        for case in all_cases:
            # The request is sent only once, where that can be seen: a second one would get through.
            once = not case.cold and fault in _DONE | {Fault.RESET_REQUEST, Fault.SWALLOW, Fault.BLACK_HOLE}
            await case.proxy.begin(fault, after=case.after, once=once)
        with patience(PATIENCE if fault in _SILENT else 5):
            await each(all_cases, Case.call)
        for case in all_cases:
            await case.proxy.heal()
        for case in all_cases:
            failed = not isinstance(case.outcome, Answer)
            used = {number for number, _ in case.proxy.asked}
            if failed:
                await case.proxy.quiet()  # what was held arrives now, and no caller is left
            state = (await direct.apply(case.queue, Inspect(), NOW + 3_000)).state
            try:
                judge(case, fault, state)
                case.proxy.asked.clear()
                assert await case.store.apply(case.other, Inspect(), NOW) == Answer(state=None, now=NOW)
                new, answer = rules.apply(None, PREPARED[0], NOW)
                assert await case.store.apply(case.other, PREPARED[0], NOW) == answer
                assert await case.store.apply(case.other, Drop(), NOW) == rules.apply(new, Drop(), NOW)[1]
                if failed and case.proxy.hits:
                    assert used.isdisjoint(case.named(case.proxy.asked)), "that connection is gone"
            except AssertionError as error:
                error.add_note(f"{case.name}, {'new' if case.cold else 'used'} connection, {case.after=}")
                raise
            await direct.apply(case.queue, Drop())
        if fault is not Fault.REFUSE:
            assert any(case.proxy.hits for case in all_cases if not case.cold), "the fault was there"


@pytest.mark.parametrize("fault", [Fault.HOLD_REQUESTS, Fault.HOLD_ANSWERS])
async def test_the_answer_to_a_cancelled_call_is_read_by_nobody(server_url: str, fault: Fault) -> None:
    """This holds for the next call and one that already waits, at whichever step the call was cancelled."""
    async with aclosing(open_store(server_url)) as direct, cases(server_url, direct) as all_cases:
        for case in all_cases:
            await case.proxy.begin(fault, after=case.after)
        waiting: list[Answer] = []

        async def wait_in_turn(case: Case) -> None:
            waiting.append(await case.store.apply(case.other, Inspect(), NOW))

        async with anyio.create_task_group() as others:
            async with anyio.create_task_group() as group:
                for case in all_cases:
                    group.start_soon(case.call)
                    await case.proxy.until(lambda case=case: case.proxy.hits > 0)  # type: ignore[misc]
                    others.start_soon(wait_in_turn, case)
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            cancelled = [{number for number, _ in case.proxy.asked} for case in all_cases]
            for case in all_cases:
                case.proxy.asked.clear()
                await case.proxy.heal()
        assert waiting == [Answer(state=None, now=NOW)] * len(all_cases)
        for case, used in zip(all_cases, cancelled, strict=True):
            if not server_url.startswith("redis"):  # whose connection continues, and skips that answer
                assert used.isdisjoint(case.named(case.proxy.asked)), f"{case.name}, {case.after=}"
            assert await case.store.apply(case.other, Inspect(), NOW) == Answer(state=None, now=NOW)
            await direct.apply(case.queue, Drop())


@pytest.mark.parametrize("fault", FAULTS)
async def test_listening_and_listing_work_or_say_that_they_do_not(server_url: str, fault: Fault) -> None:
    """It may break at each step of its beginning, and later; wake-ups are only hints."""

    async def listen(proxy: Proxy, store: Store) -> int:
        queue = f"p{secrets.token_hex(8)}"
        assert isinstance(store, Waking)
        proxy.asked.clear()
        async with store.wakeups(queue) as woken:
            steps = len(proxy.asked)
            for command in (PREPARED[0], Hold(), Resume()):
                answer = await store.apply(queue, command)
            assert answer.woken
            if woken is not anyio.sleep_forever:  # behind a pooler no wake-ups come
                await woken()
        assert queue in await store.names()
        await store.apply(queue, Drop())
        return steps

    async def begin_to_listen(proxy: Proxy, store: Store) -> None:
        assert isinstance(store, Waking)
        with suppress(StoreUnavailable):
            async with store.wakeups("q") as woken:
                await proxy.begin(fault)
                with anyio.move_on_after(0):
                    await woken()

    async def list_names(_: Proxy, store: Store) -> None:
        with suppress(StoreUnavailable):
            assert listed in await store.names()

    listed = f"p{secrets.token_hex(8)}"
    async with AsyncExitStack() as stack:

        async def way() -> tuple[Proxy, Store]:
            proxy = await stack.enter_async_context(proxied(server_url))
            return proxy, await stack.enter_async_context(aclosing(open_store(proxy.url)))

        first = await way()
        await first[1].apply(listed, PREPARED[0])
        ways = [first, *[await way() for _ in range(await listen(*first) + 1)]]
        for after, (proxy, _) in enumerate(ways, -1):
            await proxy.begin(fault, after=max(0, after))
        with patience(PATIENCE if fault in _SILENT else 5):
            async with anyio.create_task_group() as group:
                group.start_soon(list_names, *first)
                group.start_soon(each, ways[1:], begin_to_listen)
        for proxy, _ in ways:
            await proxy.heal()
        await each(ways, listen)
        await first[1].apply(listed, Drop())

"""Clients of a service that go away: what was claimed for them is free again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio
import grpc
import pytest

from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq import over_grpc
from intervalq.service._entroq.claimants import Claimants
from intervalq.service._entroq.claims import Claims, Found
from intervalq.service._entroq.methods import NAME
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._entroq.waiting import Waiting
from intervalq.tasks.rules import SECOND, Command, Insert, Modify, Row, Select, Work
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.tasks import MemoryTaskStore

A = TypeVar("A")


async def test_what_was_claimed_for_a_client_that_went_away_meanwhile_is_given_back() -> None:
    asked, answered = anyio.Event(), anyio.Event()
    back: list[str] = []

    async def claim() -> Found:
        asked.set()
        await answered.wait()
        return Found(Row("t", 1, "q", 0, "null"))

    async def give_back(row: Row) -> None:
        back.append(row.id)

    waiting = Waiting(MemoryTaskStore("memory://waiting"), give_back)
    async with anyio.create_task_group() as group:
        await group.start(waiting.run)
        async with anyio.create_task_group() as client:
            client.start_soon(waiting.wait, ("q",), claim)
            await asked.wait()
            client.cancel_scope.cancel()
        answered.set()
        assert (await waiting.wait(("q",), claim)).id == "t"
        group.cancel_scope.cancel()
    assert back == ["t"]


async def test_what_was_claimed_for_nobody_is_given_back_while_the_service_ends() -> None:
    asked, answered, gives, given = (anyio.Event() for _ in range(4))
    back: list[str] = []

    async def claim() -> Found:
        asked.set()
        await answered.wait()
        return Found(Row("t", 1, "q", 0, "null"))

    async def give_back(row: Row) -> None:
        gives.set()
        await given.wait()
        back.append(row.id)

    waiting = Waiting(MemoryTaskStore("memory://ends"), give_back)
    async with anyio.create_task_group() as group:
        await group.start(waiting.run)
        async with anyio.create_task_group() as client:
            client.start_soon(waiting.wait, ("q",), claim)
            await asked.wait()
            client.cancel_scope.cancel()
        answered.set()
        await gives.wait()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            given.set()
    assert back == ["t"]


class Slow(MemoryTaskStore):
    """A store that answers a claim only when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked, self.goes_on = anyio.Event(), anyio.Event()

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        answer = await super().apply(command, now)
        if isinstance(command, Work) and command.limit:
            self.asked.set()
            await self.goes_on.wait()
        return answer


async def test_what_the_store_claims_after_the_client_has_gone_is_given_back() -> None:
    """The request is cancelled as gRPC does it, by the task of the event loop."""
    store = Slow("memory://slow")
    await store.apply(Modify(inserts=(Insert("q", "1", "t"),)))
    claims = Claims(store, Claimants(store))
    request = asyncio.ensure_future(claims.claim("me", ("q",), 3_600 * SECOND))
    await store.asked.wait()
    (row,) = await store.apply(Select(ids=("t",)))
    assert row.session == "entroq:me"
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    store.goes_on.set()
    await claims.aclose()
    (row,) = await store.apply(Select(ids=("t",)))
    assert (row.session, row.claims) == (None, 1)


class Deaf:
    """A store without wake-ups: another process inserts, and nobody tells."""

    def __init__(self, store: MemoryTaskStore) -> None:
        self.url, self.apply, self.aclose = store.url, store.apply, store.aclose


async def when_claimed(store: MemoryTaskStore | Deaf, lines: int, *, others: bool) -> float:
    """When a task that another process inserts after 1 s, and that is ready after 3 s, reaches its client.

    It waits in one of so many lines; `others` come and go meanwhile.
    """
    claims = Claims(store, Claimants(store))
    waiting = Waiting(store, claims.give_back)

    async def client(queue: str) -> None:
        await waiting.wait((queue,), partial(claims.claim, "me", (queue,), SECOND))

    async def busy() -> None:
        for number in count():
            await store.apply(Modify(inserts=(Insert("busy", "1", f"busy-{number}"),)))
            waiting.notify(["busy"])
            await client("busy")
            await anyio.sleep(0.02)

    async def late() -> None:
        await anyio.sleep(1)
        await store.apply(Modify(inserts=(Insert("last", "1", "t", delay=2 * SECOND),)))

    async with anyio.create_task_group() as group:
        await group.start(waiting.run)
        for number in range(lines - 1):
            group.start_soon(client, f"q{number}")
        if others:
            group.start_soon(busy)
        group.start_soon(late)
        begun = anyio.current_time()
        await client("last")
        taken = anyio.current_time() - begun
        group.cancel_scope.cancel()
    return taken


@pytest.mark.parametrize(
    ("hears", "lines", "others"), [(True, 1, False), (True, 20, False), (False, 1, True), (False, 20, True)]
)
def test_a_task_that_is_ready_later_is_claimed_then(hears: bool, lines: int, others: bool) -> None:
    async def run() -> float:
        store = MemoryTaskStore("memory://later", clock=virtual_micros)
        return await when_claimed(store if hears else Deaf(store), lines, others=others)

    assert virtual_time(run, horizon=20) == pytest.approx(3, abs=0.02)


class Hasty:
    """A call of a client that waits for 50 ms."""

    def time_remaining(self) -> float:
        return 0.05

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def code(self) -> grpc.StatusCode:  # for the metrics, if another test has asked for them
        return grpc.StatusCode.DEADLINE_EXCEEDED

    async def abort(self, code: grpc.StatusCode, message: str) -> None:
        raise LookupError(code, message)


def test_no_task_is_claimed_for_a_client_whose_deadline_comes_before_the_answer() -> None:
    async def run() -> tuple[float, str | None]:
        store = MemoryTaskStore("memory://hasty", clock=virtual_micros)
        verbs = Verbs(store, clock=virtual_micros)
        details = SimpleNamespace(method=f"/{NAME}/Claim", invocation_metadata=())
        method: Any = over_grpc.handler(verbs, None).service(cast("Any", details))
        async with anyio.create_task_group() as group:
            await group.start(verbs.waiting.run)
            with pytest.raises(LookupError, match="DEADLINE_EXCEEDED"):
                await method.unary_unary(pb.ClaimRequest(claimant_id="me", queues=["q"]), Hasty())
            ended = anyio.current_time()
            await store.apply(Modify(inserts=(Insert("q", "1", "t"),)))
            verbs.waiting.notify(["q"])
            await anyio.sleep(1)
            group.cancel_scope.cancel()
        (row,) = await store.apply(Select(ids=("t",)))
        return ended, row.session

    ended, session = virtual_time(run, horizon=20)
    assert ended == pytest.approx(0.04, abs=0.001)
    assert session is None


class Asked:
    """A caller whose rights are checked when `answers` is set."""

    name = account = ""

    def __init__(self) -> None:
        self.asked, self.answers = anyio.Event(), anyio.Event()

    async def denied(self, wanted: Collection[tuple[str, str]], claimant: str) -> set[tuple[str, str]]:
        del wanted, claimant
        self.asked.set()
        await self.answers.wait()
        return set()

    def claimant(self, claimant: str) -> str:
        return claimant


async def test_a_task_is_given_back_if_its_client_goes_away_while_its_rights_are_checked() -> None:
    store = MemoryTaskStore("memory://rights")
    verbs = Verbs(store)
    caller = Asked()
    async with anyio.create_task_group() as group:
        await group.start(verbs.waiting.run)
        async with anyio.create_task_group() as client:
            client.start_soon(verbs.claim, pb.ClaimRequest(claimant_id="me", queues=["q"]), caller)
            await caller.asked.wait()
            may_wait, caller.asked, caller.answers = caller.answers, anyio.Event(), anyio.Event()
            may_wait.set()
            await anyio.wait_all_tasks_blocked()
            await store.apply(Modify(inserts=(Insert("q", "1", "t"),)))
            verbs.waiting.notify(["q"])
            await caller.asked.wait()
            client.cancel_scope.cancel()
        group.cancel_scope.cancel()
    (row,) = await store.apply(Select(ids=("t",)))
    assert (row.session, row.claims) == (None, 1)

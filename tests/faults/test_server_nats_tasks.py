"""What a NATS, and the connection to it, may do to durable tasks that are being worked on."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.lowlevel import checkpoint

from faults.proxy import Fault, Proxy, proxied
from intervalq import errors
from intervalq.tasks import Claim, Tasks
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._task.message import STREAM
from intervalq_stores.nats.tasks import NATSTaskStore
from servers import Server

PATIENCE = 30

WORKER = """
import sys, anyio
from intervalq.errors import ClaimLost
from intervalq.tasks import Tasks

async def main():
    async with Tasks(sys.argv[1], expiry=1) as tasks:
        claim = await tasks.claim(sys.argv[2])
        print("has", claim.attempt, flush=True)
        sys.stdin.readline()
        try:
            await claim.ack()
            print("done", flush=True)
        except ClaimLost:
            print("lost", flush=True)

anyio.run(main)
"""


@pytest.fixture
def queue() -> str:
    return f"q.{secrets.token_hex(6)}"


@pytest.fixture
async def others(nats_url: str) -> AsyncIterator[Tasks]:
    """A store as if in another process."""
    async with Tasks(nats_url, expiry=1) as tasks:
        yield tasks


class WorkerPool:
    """Workers of two handles, which record what they do."""

    def __init__(self, url: str, queue: str) -> None:
        self.handles = [Tasks(url, expiry=1) for _ in range(2)]
        self.done: Counter[int] = Counter()
        self.order: dict[str | None, list[int]] = defaultdict(list)
        self._moved = anyio.Event()
        for tasks in self.handles:
            tasks.worker(queue, concurrency=3, backoff=0.01)(self._work)

    async def _work(self, claim: Claim) -> None:
        await anyio.sleep(0.002)
        if claim.value not in self.order[claim.key]:
            self.order[claim.key].append(claim.value)
        self.done[claim.value] += 1
        self._moved.set()
        self._moved = anyio.Event()

    async def until(self, happened: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not happened():
                await self._moved.wait()


@asynccontextmanager
async def at_work(url: str, queue: str) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(url, queue)
    async with anyio.create_task_group() as group:
        for tasks in pool.handles:
            group.start_soon(tasks.run)
        yield pool
        for tasks in pool.handles:
            tasks.stop()
    for tasks in pool.handles:
        await tasks.aclose()


async def enough(tasks: Tasks, queue: str, first: int, last: int) -> None:
    """Insert tasks, half of them with keys, until each of them certainly exists."""
    for number in range(first, last):
        key = f"k{number % 3}" if number % 2 else None
        while True:
            try:
                await tasks.insert(queue, number, id=f"t{number}", key=key, skip=True)
                break
            except errors.StoreUnavailable:
                await anyio.sleep(0.01)


async def empty(tasks: Tasks, queue: str) -> None:
    with anyio.fail_after(PATIENCE):
        while await tasks.queues(queue):
            await anyio.sleep(0.01)


async def test_the_server_is_killed_and_comes_back(own_nats: Callable[..., Server], queue: str) -> None:
    server = own_nats()
    async with at_work(server.url, queue) as pool, Tasks(server.url) as tasks:
        await enough(tasks, queue, 0, 20)
        for turn in range(1, 4):
            await pool.until(lambda turn=turn: len(pool.done) >= 20 * turn - 10)  # type: ignore[misc]
            await anyio.to_thread.run_sync(server.stop)
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, server.start)
                await enough(tasks, queue, 20 * turn, 20 * turn + 20)
        await pool.until(lambda: len(pool.done) == 80)
        await empty(tasks, queue)
    # A killed server forgets its last deliveries and removals, so those tasks may be done twice.
    for key, order in pool.order.items():
        assert key is None or order == sorted(order)


async def test_the_stream_is_purged_or_removed(own_nats: Callable[..., Server], queue: str) -> None:
    """The existing tasks are lost, whoever works on them; later ones are done."""
    server = own_nats()
    async with Tasks(server.url) as tasks, aclosing(NATSTaskStore(server.url)) as store:
        for verb, first in (("STREAM.PURGE", 0), ("STREAM.DELETE", 10)):
            await tasks.insert(queue, "a", key="key")
            await tasks.insert(queue, "b", key="key")
            await tasks.insert(queue, "c")
            claims = await tasks.pull(queue, name="p").fetch(9)
            assert sorted(claim.value for claim in claims) == ["a", "c"]
            await store._stream.server.ask(f"{verb}.{STREAM}")
            # A purged stream goes on counting, so that no claim fits a later task.
            if verb == "STREAM.PURGE":
                await tasks.insert(queue, "d", key="key")
            (first_of_key,) = (claim for claim in claims if claim.value == "a")
            with pytest.raises(errors.ClaimLost):
                await first_of_key.ack()
            async with at_work(server.url, queue) as pool:
                await enough(tasks, queue, first, first + 10)
                await pool.until(lambda first=first: set(range(first, first + 10)) <= set(pool.done))  # type: ignore[misc]
            await empty(tasks, queue)


@contextmanager
def deaf(url: str, queue: str, count: int) -> Iterator[None]:
    """A client that asks for tasks, and doesn't read what arrives."""
    there = urlsplit(url)
    request = json.dumps({"batch": count, "expires": 60_000_000_000})
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{encoded(queue)}"
    hello = b'CONNECT {"verbose":false,"headers":true}\r\nSUB here 1\r\n'
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect((there.hostname, there.port))
        wire.sendall(hello + f"PUB {subject} here {len(request)}\r\n{request}\r\n".encode())
        yield


async def test_a_consumer_that_does_not_read_is_cut_off(
    own_nats: Callable[..., Server], queue: str, tmp_path: Path
) -> None:
    """Its tasks go to others after the ack wait, who aren't delayed meanwhile."""
    config = tmp_path / "nats.conf"
    config.write_text("max_pending: 4MB\nwrite_deadline: 1s\n")
    server = own_nats("-c", str(config))
    async with Tasks(server.url, expiry=1) as tasks:
        assert await tasks.try_claim(queue) is None  # the consumer with its ack wait
        await tasks.modify(*(tasks.new(queue, [number, "x" * 200_000]) for number in range(60)))
        pull = tasks.pull(queue, name="p", max_ack_pending=None)
        with anyio.fail_after(PATIENCE), deaf(server.url, queue, 60):
            while (await pull.info()).ack_pending == 0:
                await checkpoint()
            await tasks.insert(queue, "not held up")
            found: dict[Any, int] = {}
            left = True
            while left:
                # On a busy machine this client may read too late and be cut off, too; then it asks again.
                with suppress(errors.ClaimLost, errors.StoreUnavailable):
                    left = await tasks.queues(queue) != []
                    for claim in await pull.fetch(9, timeout=1):
                        value = claim.value
                        found[value[0] if isinstance(value, list) else value] = claim.claims
                        await claim.ack()
        assert "not held up" in found
        found.pop("not held up")
        assert sorted(found) == list(range(60))
        assert max(found.values()) > 1


# --- acknowledgements that are lost -----------------------------------------------------------------


def conditional(proxy: Proxy) -> int:
    """How many messages were to be stored in place of tasks, if those were still the last ones there."""
    return sum(data.count(b"HPUB intervalq.tasks.w.") for _, data in proxy.asked)


def within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(nats_server, "WITHIN", seconds)


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("fault", [Fault.SWALLOW, Fault.BLACK_HOLE, Fault.RESET_ANSWER, Fault.RESET_REQUEST])
async def test_a_lost_acknowledgement_is_said_again_on_condition(
    nats_url: str,
    others: Tasks,
    queue: str,
    fault: Fault,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether or not the server got it, the task is done once, and the next one of its key comes."""
    within(monkeypatch, 0.3)
    async with proxied(nats_url) as proxy, Tasks(proxy.url, expiry=60) as tasks:
        await others.insert(queue, 1, key=key)
        await others.insert(queue, 2, key=key)
        claim = await tasks.claim(queue)
        await proxy.begin(fault)
        async with anyio.create_task_group() as group:
            group.start_soon(claim.ack)
            await proxy.until(lambda: proxy.hits > 0)
            seen = proxy.connections
            while proxy.connections == seen and fault in {Fault.SWALLOW, Fault.BLACK_HOLE}:
                await anyio.sleep(0.01)  # until it is given up
            await proxy.heal()
        assert not claim.open
        if key is None:
            assert conditional(proxy) >= 1, "more than one where that takes longer than the limit"
        (second,) = await others.pull(queue, name="p").fetch(9, timeout=PATIENCE)
        assert (second.value, second.attempt) == (2, 1)
        await second.ack()
        assert await others.queues(queue) == []


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("key", [None, "key"])
async def test_an_acknowledgement_that_was_lost_until_others_had_the_task(
    nats_url: str, others: Tasks, queue: str, key: str | None, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker learns of the loss, and changes nothing: its task runs elsewhere, is done, or is gone."""
    within(monkeypatch, 1.2)
    async with proxied(nats_url) as proxy, Tasks(proxy.url, expiry=1) as tasks:
        await others.insert(queue, 1, key=key)
        claim = await tasks.claim(queue)
        await proxy.begin(Fault.BLACK_HOLE)
        lost = 0
        async with anyio.create_task_group() as group:

            async def ack() -> None:
                nonlocal lost
                with pytest.raises(errors.ClaimLost):
                    await claim.ack()
                lost += 1

            group.start_soon(ack)
            (again,) = await others.pull(queue, name="p").fetch(1, timeout=PATIENCE)
            assert (again.value, again.attempt, again.claims) == (1, 1, 2), "the first loss is not charged"
            if done:
                await again.ack()
            await proxy.heal()
        assert lost == 1
        assert [task.id for task in await others.tasks(queue)] == ([] if done else [claim.id])
        if not done:
            await again.ack()
        assert await others.tasks(queue) == []


async def test_an_insert_that_is_repeated_is_done_once(
    nats_url: str, others: Tasks, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost. With a dedupe key, this also works if the task has been done meanwhile."""
    async with proxied(nats_url) as proxy, Tasks(proxy.url) as tasks:
        for options in ({"id": "mine", "skip": True}, {"dedupe_key": "d", "dedupe_for": 1}):
            assert await tasks.try_claim(queue) is None  # the consumer is there
            await proxy.begin(Fault.SWALLOW)
            while not await others.tasks(queue):  # on a busy machine it may time out before it is sent
                with monkeypatch.context() as soon:
                    within(soon, 0.2)  # the other calls may take as long as they do on a busy machine
                    with pytest.raises(errors.StoreTimeout):
                        await tasks.insert(queue, 1, **options)  # type: ignore[arg-type]
            await proxy.heal()
            first = await tasks.insert(queue, 2, **options)  # type: ignore[arg-type]
            (claim,) = await others.pull(queue, name="p").fetch(9)
            assert (claim.value, claim.id) == (1, first)
            await claim.ack()
        assert await tasks.insert(queue, 3, dedupe_key="d", dedupe_for=1) == first
        assert await tasks.tasks(queue) == []
        with anyio.fail_after(PATIENCE):
            while (
                await tasks.insert(queue, 4, dedupe_key="d", dedupe_for=1) == first
            ):  # until the window is over
                await anyio.sleep(0.02)
        assert [task.value for task in await tasks.tasks(queue)] == [4]


# --- workers that stop or die -----------------------------------------------------------------------


@asynccontextmanager
async def worker(url: str, queue: str) -> AsyncIterator[Any]:
    """A process with a claim."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, url, queue,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_worker_that_was_stopped_for_too_long_is_told(
    nats_url: str, others: Tasks, queue: str, key: str | None
) -> None:
    """Its task runs elsewhere, and its late acknowledgement changes nothing."""
    await others.insert(queue, 1, key=key)
    async with worker(nats_url, queue) as process:
        assert await process.stdout.readline() == b"has 1\n"
        process.send_signal(signal.SIGSTOP)
        claim = await others.claim(queue, timeout=PATIENCE)
        assert (claim.value, claim.attempt, claim.claims) == (1, 1, 2), "the first loss is not charged"
        process.stdin.write(b"\n")
        process.send_signal(signal.SIGCONT)
        assert await process.stdout.readline() == b"lost\n"
        assert [task.version for task in await others.tasks(queue)] == [claim.version]
        await claim.ack()
        assert await others.tasks(queue) == []


async def test_a_worker_that_is_killed_leaves_its_task_to_others(
    nats_url: str, others: Tasks, queue: str
) -> None:
    await others.insert(queue, 1, key="key")
    await others.insert(queue, 2, key="key")
    async with worker(nats_url, queue) as process:
        assert await process.stdout.readline() == b"has 1\n"
        process.kill()
        for number, claims in ((1, 2), (2, 1)):
            claim = await others.claim(queue, timeout=PATIENCE)
            assert (claim.value, claim.claims) == (number, claims)
            await claim.ack()
    assert await others.queues(queue) == []


async def test_a_lost_connection_gives_up_no_claim(nats_url: str, others: Tasks, queue: str) -> None:
    """Another process renews the claim, and settles it there."""
    async with (
        proxied(nats_url) as proxy,
        Tasks(proxy.url, expiry=1) as tasks,
        aclosing(NATSTaskStore(nats_url)) as look,
    ):
        await others.insert(queue, 1)
        claim = await tasks.claim(queue)
        for _ in range(3):
            await proxy.begin(Fault.REFUSE)
            await proxy.heal()
            assert await others.pull(queue, name="p").fetch(1, timeout=0.7) == []
        assert (await look.pulled((queue,)))[queue].redelivered == 0
        await claim.ack()
        assert await others.queues(queue) == []

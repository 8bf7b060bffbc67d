"""A worker with a blocked event loop keeps its claims if its store sees that its process is alive."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Final

import anyio.lowlevel
import pytest

from faults.proxy import Fault, proxied
from intervalq.tasks import Tasks
from intervalq.tasks.rules import SECOND, Beat, Begin, End, Select, Session, Sessions, Work
from intervalq_stores.postgres.tasks import PostgresTaskStore

EXPIRY: Final = 0.2
BOUND: Final = 300 * SECOND


@contextmanager
def blocked(url: str, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker's process, which is killed at the end."""
    path = Path(__file__).with_name("blocked_process.py")
    process = subprocess.Popen(
        [sys.executable, path, url, queue, str(EXPIRY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def begun(process: subprocess.Popen[bytes]) -> bytes:
    """Wait for its first line of output."""
    assert process.stdout is not None
    return await anyio.to_thread.run_sync(process.stdout.readline)


class Other:
    """Another session, which would take lost claims."""

    def __init__(self, store: PostgresTaskStore, queue: str) -> None:
        self.store, self.queue = store, queue
        self.session = f"other-{secrets.token_hex(6)}"

    async def blocked(self) -> Session:
        """The session of the process that has the task."""
        [row] = await self.store.apply(Select(queue=self.queue))
        [found] = [one for one in await self.store.apply(Sessions()) if one.id == row.session]
        return found

    async def beats(self, times: float) -> list[str]:
        """Send heartbeats for `times` expiries after the other session's; return that if removed."""
        watched = await self.blocked()
        mine = watched.beaten + round(times * EXPIRY * SECOND)
        lapsed: list[str] = []
        while not lapsed:
            found = (await self.store.apply(Beat(self.session))).lapsed
            lapsed += [one for one in found if one == watched.id]  # sessions of other tests may lapse, too
            now = max(one.beaten for one in await self.store.apply(Sessions()) if one.id == self.session)
            if now > mine:
                break
        return lapsed

    async def claim(self) -> int:
        """Try to claim the task, and return how many were claimed."""
        return len((await self.store.apply(Work(self.session, queues=(self.queue,), limit=1))).claimed)


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Other]:
    async with aclosing(PostgresTaskStore(postgres_url)) as store:
        other = Other(store, f"q-{secrets.token_hex(6)}")
        await store.apply(Begin(Session(other.session, expiry=3600 * SECOND)))
        yield other
        await store.apply(End(other.session))


async def test_it_keeps_what_it_has_and_ends_it(postgres_url: str, other: Other) -> None:
    async with Tasks(postgres_url) as tasks:
        await tasks.insert(other.queue, 1)
        with blocked(postgres_url, other.queue) as process:
            assert await begun(process) == b"begun 1\n"
            assert await other.beats(6) == []
            assert await other.claim() == 0
            process.communicate(b"\n")
            assert process.returncode == 0
        assert await tasks.tasks(other.queue) == []


async def test_when_it_is_killed_its_claims_are_free(postgres_url: str, other: Other) -> None:
    async with Tasks(postgres_url) as tasks:
        await tasks.insert(other.queue, 1)
        with blocked(postgres_url, other.queue) as process:
            await begun(process)
            assert await other.beats(3) == []
            dead = (await other.blocked()).id
            process.kill()
            with anyio.fail_after(60):
                while not (lapsed := (await other.store.apply(Beat(other.session))).lapsed):
                    await anyio.lowlevel.checkpoint()
            assert dead in lapsed
            [row] = await other.store.apply(Select(queue=other.queue))
            assert (row.session, row.attempt, row.alone) == (None, 1, True)
        await tasks.modify((await tasks.tasks(other.queue))[0].delete())


async def test_what_is_cut_off_behind_something_that_lives_is_free_after_a_while(
    postgres_url: str, other: Other
) -> None:
    """The server sees an open connection, whatever became of the process."""
    async with Tasks(postgres_url) as tasks, proxied(postgres_url) as proxy:
        await tasks.insert(other.queue, 1)
        with blocked(proxy.url, other.queue) as process:
            await begun(process)
            await proxy.begin(Fault.BLACK_HOLE)
            assert await other.beats(3) == []
            blind = await other.blocked()
            assert (await other.store.apply(Beat(other.session), blind.beaten + BOUND)).lapsed == ()
            assert blind.id in (await other.store.apply(Beat(other.session), blind.beaten + BOUND + 1)).lapsed
        await tasks.modify((await tasks.tasks(other.queue))[0].delete())


async def test_the_server_looks_whether_the_machine_of_a_guard_is_there(postgres_url: str) -> None:
    """By default, it would keep a session for a quarter of an hour or two hours after its machine died."""
    async with aclosing(PostgresTaskStore(postgres_url)) as store:
        session = f"s-{secrets.token_hex(6)}"
        await store.apply(Begin(Session(session, expiry=3600 * SECOND)))
        async with store.guard(session):
            connection = store._direct._sessions[session].connection
            asked = b"select name, setting::integer from pg_settings where name like 'tcp_%'"
            found = {row[0]: row[1] async for row in await connection.execute(asked)}
        await store.apply(End(session))
    keepalive = [found[f"tcp_keepalives_{name}"] for name in ("idle", "interval", "count")]
    assert keepalive[0] + keepalive[1] * keepalive[2] <= 15
    assert 0 < found["tcp_user_timeout"] <= 15_000

"""Claims that a shell holds: they outlive the commands that make and settle them.

Each has a session of its own, without heartbeats, whose expiry is the claim's lease. So the task is free
again if nobody settles it in time.
"""

from __future__ import annotations

import os
import re
import socket
import time
from typing import Any, Final, NamedTuple

import anyio

from intervalq.cli._app import Failed
from intervalq.cli._tasks.show import fields
from intervalq.errors import InvalidOption, UnsupportedOperation, short
from intervalq.tasks import Task, Tasks
from intervalq.tasks._spec.ids import new_id
from intervalq.tasks.rules import Begin, Change, Delete, End, Row, Select, Session, Work
from intervalq.tasks.store import Pulling

_FIRST_POLL: Final = 0.05
_LAST_POLL: Final = 0.5
_TOKEN: Final = re.compile(r"([0-9]{1,10}):([0-9a-f-]{36}):(.{1,128})", re.DOTALL)


class ShellClaim(NamedTuple):
    """A claim, as its token describes it: the version of the task, the session, and the id of the task."""

    version: int
    session: str
    id: str

    @property
    def token(self) -> str:
        """The text that the shell keeps."""
        return f"{self.version}:{self.session}:{self.id}"


def parsed(token: str) -> ShellClaim:
    """The claim of a token.

    Raises:
        InvalidOption: it is not the token of a claim.
    """
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise InvalidOption(
            f'{short(token)} is not a claim: give the text of "claim" that `intervalq tasks claim` printed'
        )
    return ShellClaim(int(found[1]), found[2], found[3])


def shown(row: Row) -> dict[str, Any]:
    """A claimed task, with the token of its claim, for JSON output."""
    return {"claim": ShellClaim(row.version, row.session or "", row.id).token, **fields(Task(row))}


async def claim(handle: Tasks, queues: tuple[str, ...], lease: int, wait: float) -> Row | None:
    """Claim a task for `lease` microseconds; None: none came within `wait` seconds.

    Raises:
        UnsupportedOperation: claims end with the process that makes them (NATS).
    """
    store = handle._here()
    if isinstance(store, Pulling):
        raise UnsupportedOperation(
            store.url,
            "a claim ends with the process that makes it: write a worker, and run it with intervalq work",
        )
    session, row = await _begin(handle, new_id(), lease), None
    try:
        row = await _claimed(handle, Work(session, queues=queues, limit=1, lease=lease, begins=2), wait)
    finally:
        if row is None:
            with anyio.CancelScope(shield=True):
                await handle._apply(End(session))
    return row


async def _begin(handle: Tasks, session: str, expiry: int) -> str:
    shell = Session(session, socket.gethostname(), os.getppid(), "", expiry)
    await handle._apply(Begin(shell))
    return session


async def _claimed(handle: Tasks, work: Work, wait: float) -> Row | None:
    end, poll = time.monotonic() + wait, _FIRST_POLL
    while True:
        worked = await handle._apply(work)
        if worked.claimed:
            return worked.claimed[0]
        left = end - time.monotonic()
        if left <= 0:
            return None
        soon = poll if worked.wait is None else min(poll, worked.wait / 1e6 + 0.001)
        await anyio.sleep(min(left, soon))
        poll = min(1.5 * poll, _LAST_POLL)


async def settle(handle: Tasks, claim_: ShellClaim, part: Delete | Change) -> None:
    """Settle a claim, and end its session.

    Raises:
        Failed: it is lost.
    """
    worked = await handle._apply(Work(claim_.session, (part,)))
    await _leave(handle, claim_.session)
    _check(claim_, worked.lost)


async def renew(handle: Tasks, claim_: ShellClaim, part: Change) -> Row:
    """Change a task that stays claimed, for the lease of the change.

    Raises:
        Failed: the claim is lost.
    """
    assert part.lease is not None
    await _begin(handle, claim_.session, part.lease)
    worked = await handle._apply(Work(claim_.session, (part,)))
    await _leave(handle, claim_.session)
    _check(claim_, worked.lost)
    (task,) = await handle.tasks(ids=[claim_.id])
    return task._row


async def _leave(handle: Tasks, session: str) -> None:
    """End the session, unless it still has a claim because another command has renewed it."""
    if not await handle._apply(Select(session=session, limit=1, values=False)):
        await handle._apply(End(session))


def _check(claim_: ShellClaim, lost: tuple[str, ...]) -> None:
    if lost:
        raise Failed(
            f"task {claim_.id} is no longer held by this claim: its time is over, it was settled or renewed, "
            "or somebody changed or cancelled the task; nothing was done"
        )

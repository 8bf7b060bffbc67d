"""Processes without some right that durable schedules need: their workers go on, and others do the rest."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from intervalq.errors import Unauthorized
from intervalq.tasks import Claim, Tasks
from intervalq.tasks._schedule.record import QUEUE
from intervalq.tasks.rules import Change, Command, Modify, Work
from tasks.fake_store import FakeStore, handle
from virtual_store import in_virtual_time


def worker(store: FakeStore, queue: str, seen: list[str]) -> Tasks:
    tasks = handle(store)

    @tasks.worker(queue)
    async def note(task: Claim) -> None:
        seen.append(task.id)

    return tasks


def may_not(what: str, command: Command[Any]) -> Exception | None:
    """The rights of one process: it works on a queue of its own."""
    if what == "insert":
        denied = isinstance(command, Modify) and any(one.queue == "out" for one in command.inserts)
    elif what == "change":
        parts = command.settled if isinstance(command, Work) else ()
        parts += command.changes if isinstance(command, Modify) else ()
        denied = any(isinstance(part, Change) and part.id.startswith("schedule/") for part in parts)
    else:
        denied = isinstance(command, Work) and QUEUE in command.queues
    return Unauthorized("memory://", f"you may not {what}") if denied else None


@pytest.mark.parametrize("what", ["insert", "change", "claim"])
@in_virtual_time
async def test_workers_go_on_and_others_keep_them(what: str, caplog: pytest.LogCaptureFixture) -> None:
    store, own, out = FakeStore(), list[str](), list[str]()
    poor = store.line(delay=0.001)
    poor.fails = lambda command: may_not(what, command)
    async with handle(store.line()) as all_, anyio.create_task_group() as group:
        for name in ("s", "t"):
            await all_.schedule(name, "out", every="1m")
        await all_.schedule("mine", "mine", every="1m")
        group.start_soon(worker(poor, "mine", own).run)
        await anyio.sleep(50)  # nobody else is there
        assert not out
        assert len(own) == (1 if what == "insert" else 0), "each schedule for itself"
        group.start_soon(worker(store.line(delay=0.001), "out", out).run)
        await anyio.sleep(145)
        await all_.insert("mine", 1, id="last")
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    times = [f"2001-09-09T01:{minute}Z" for minute in range(47, 50)]
    assert sorted(out) == [f"{name}/{time}" for name in ("s", "t") for time in times]
    assert own[-1] == "last"
    assert sorted(own[:-1]) == [f"mine/{time}" for time in times]
    said = [record.getMessage() for record in caplog.records if f"may not {what}" in record.getMessage()]
    assert len(said) == 1, "once, whatever the number of schedules"

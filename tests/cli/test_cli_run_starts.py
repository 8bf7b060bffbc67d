"""When a job of `intervalq run` began: at the check of its slot, however long its program takes to start."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
import pytest

from intervalq.cli._run import child
from intervalq.cli._run.program import Ended
from intervalq.cli._run.protocol import Pipes
from intervalq.testing.virtual import VirtualLoop
from virtual_store import in_virtual_time


class Messages:
    """What the parent sends, and what it is told."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = [*messages]
        self.told: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not self._messages:
            await anyio.sleep_forever()
        return self._messages.pop(0)

    def send(self, **message: Any) -> None:
        self.told.append(message)

    def flush(self) -> None:
        """They are there."""


@in_virtual_time
async def test_a_job_began_with_its_slot_even_if_the_process_then_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [{"job": number, "argv": ["true"], "cost": 1} for number in range(3)]
    pipes = Messages(*jobs, {"end": True})
    process = child.ShardProcess(cast("Pipes", pipes), {"name": "q", "rate": "10/s", "store": "memory://"})
    grants = process._queue._shard().grants
    use = grants.use

    def use_slowly(*clear: int) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.stall(0.03)
        return use(*clear)

    async def run_program(*_: object) -> Ended:
        return Ended(0, 0.0, "", "")

    monkeypatch.setattr(grants, "use", use_slowly)
    monkeypatch.setattr(child, "run_program", run_program)
    await process.serve()
    begun = [message for message in pipes.told if "begins" in message]
    assert len(begun) == 3
    assert all(0 <= each["started"] - each["due"] < 1e-3 for each in begun), begun

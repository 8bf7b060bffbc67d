"""A service with a planted bug: it answers inserts before the store has done them."""

from __future__ import annotations

import asyncio
import sys

import anyio

from intervalq._wire.intervalq_v1_pb2 import Result, Step
from intervalq._wire.values import dumps
from intervalq.cli._app import run_app
from intervalq.service._access import Caller
from intervalq.service._remote import steps
from intervalq.service._remote.stores import Stores
from intervalq.tasks.rules import Modified

real = steps.apply
late: set[asyncio.Task[object]] = set()


async def apply(stores: Stores, step: Step, caller: Caller) -> Result:
    if b'"queue":"in"' not in step.command or b'"Modify"' not in step.command:
        return await real(stores, step, caller)

    async def do() -> None:
        await anyio.sleep(0.1)
        await real(stores, step, caller)

    task: asyncio.Task[object] = asyncio.ensure_future(do())
    late.add(task)
    task.add_done_callback(late.discard)
    return Result(answer=dumps(Modified, Modified()))


steps.apply = apply
sys.exit(run_app(sys.argv[1:]))

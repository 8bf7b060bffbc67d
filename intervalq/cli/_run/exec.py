"""`intervalq exec`: waits for the next slot, then becomes another program."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import NoReturn

import anyio
import click

from intervalq import IntervalQueue, SlotTimeout
from intervalq._queue.options import wait_of
from intervalq._queue.plan import Plan
from intervalq.cli._app import Failed
from intervalq.cli._options import (
    BeforeCommand,
    bounds_options,
    cost_of,
    cost_option,
    examples,
    limit_option,
    pace_options,
    shared_store,
    store_option,
)
from intervalq.cli._run.program import NOT_FOUND, NOT_STARTED
from intervalq.errors import InvalidOption

TEMPORARY = 75
"""EX_TEMPFAIL of sysexits.h: a later try may succeed."""

_FAREWELL = 5.0
"""Seconds allowed for the last call to the store."""


@click.command(
    "exec",
    cls=BeforeCommand,
    epilog=examples(
        'intervalq exec --name mails --interval 1m -- echo "my turn"',
        "intervalq exec --name llm --limit '30_000 tokens/min' --cost tokens=1200 -- true",
    ),
)
@click.option(
    "--name", required=True, help="Name of the queue. Everybody who uses this name shares its pace."
)
@pace_options
@bounds_options
@limit_option
@cost_option
@click.option("--timeout", metavar="D", help="Wait at most this long for a slot, then exit with code 75.")
@store_option
@click.pass_context
def exec_(
    ctx: click.Context,
    *,
    name: str,
    interval: str | None,
    rate: str | None,
    floor: str | None,
    ceiling: str | None,
    limits: tuple[str, ...],
    costs: tuple[str, ...],
    timeout: str | None,
    store: str | None,
    command: tuple[str, ...],
) -> None:
    """Wait for the queue's next slot, then run COMMAND.

    However many of these run at once, for example from cron on many machines, their commands start one
    interval apart. The exit code is that of the command; 75 after --timeout; 126 or 127 if the command
    can't be executed or doesn't exist.
    """
    if not command:
        raise InvalidOption("give the command to run after --, for example: -- echo hello")
    queue = IntervalQueue(
        name, interval=interval, rate=rate, floor=floor, ceiling=ceiling, limits=limits or None, store=store
    )
    plan = queue._plan(cost=cost_of(costs))
    shared_store(store)
    seconds = wait_of(timeout)
    check_program(command[0])
    ctx.exit(anyio.run(_become, queue, plan, seconds, command))


def check_program(program: str) -> None:
    """Fail before the wait if the program can't be run."""
    if shutil.which(program) is not None:
        return
    if os.path.dirname(program) and os.path.exists(program):  # noqa: PTH110, PTH120 - text, as execvp takes it
        raise Failed(f"{program}: can't be executed", NOT_STARTED)
    raise Failed(f"{program}: not found", NOT_FOUND)


async def _become(queue: IntervalQueue, plan: Plan, seconds: float | None, command: tuple[str, ...]) -> int:
    """Become the command in the next slot; returns, with the exit code, only if it could not begin."""
    code = TEMPORARY
    async with anyio.create_task_group() as group:

        async def heed() -> None:
            nonlocal code
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                async for received in signals:
                    code = 128 + received
                    group.cancel_scope.cancel()

        group.start_soon(heed)
        with anyio.move_on_after(seconds):
            await _turn(queue, plan, command)
        Failed(str(SlotTimeout(queue.name, seconds or 0))).show()
        group.cancel_scope.cancel()
    return code


async def _turn(queue: IntervalQueue, plan: Plan, command: tuple[str, ...]) -> NoReturn:
    while True:
        try:
            shard, slot = await queue._acquire(plan.waiter(), None)
        finally:
            # Connections are closed cleanly: an unused ticket is given back, a used slot stays used.
            with anyio.CancelScope(shield=True), anyio.move_on_after(_FAREWELL):
                await queue.close(drain=False)
        # The last check: only the system call comes between it and the command.
        if shard.is_in_time(slot):
            _exec(command)
        queue = queue._twin()


def _exec(command: tuple[str, ...]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and the command would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the purpose of this command
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        sys.stderr.write(f"intervalq: {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(code)

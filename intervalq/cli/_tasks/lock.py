"""`intervalq tasks lock`: runs a command while this process holds an exclusive lock."""

from __future__ import annotations

import signal
from functools import partial
from typing import Final

import anyio
import click

from intervalq._queue.options import wait_of
from intervalq._spec import parse
from intervalq.cli._app import Failed
from intervalq.cli._options import BeforeCommand, examples
from intervalq.cli._run.exec import TEMPORARY, check_program
from intervalq.cli._run.program import GRACE
from intervalq.cli._tasks.command import on_tasks, tasks_store_option
from intervalq.cli._tasks.guarded import Guarded
from intervalq.errors import InvalidOption, LockLost
from intervalq.tasks import Tasks

_LAST: Final = 0.05
"""The part of the expiry that a command has to end by itself after the lock was lost.

It is half of the time that is left then until somebody else can have the lock.
"""


@click.command(
    cls=BeforeCommand,
    epilog=examples(
        "intervalq tasks lock nightly -- echo alone",
        """intervalq tasks lock report --timeout 0 -- sh -c 'echo "fence $INTERVALQ_FENCE"'""",
    ),
)
@click.argument("name", metavar="NAME")
@click.option(
    "--expiry",
    default="30s",
    show_default=True,
    metavar="D",
    help="How long the lock stays taken if this machine dies.",
)
@click.option(
    "--timeout",
    metavar="D",
    help="Wait at most this long for the lock, then exit with code 75. 0: try once. Default: no limit.",
)
@tasks_store_option
@click.pass_context
def lock(
    ctx: click.Context,
    *,
    name: str,
    expiry: str,
    timeout: str | None,
    store: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND while holding the exclusive lock NAME.

    Of all commands under one name, on any machine that uses the store, one runs at a time. The lock is that
    of `Tasks.lock` in Python. It is refreshed while COMMAND runs, and released at its end. COMMAND finds
    its fencing number in INTERVALQ_FENCE: each later holder has a higher one.

    If the lock can't be refreshed in time, COMMAND is ended, with SIGTERM and then SIGKILL, and the exit code
    is 1. Otherwise it is that of COMMAND; 75 after --timeout; 126 or 127 if COMMAND can't be executed or
    doesn't exist.
    """
    if not command:
        raise InvalidOption("give the command to run after --, for example: -- echo alone")
    parse.name(name, what="lock name")
    seconds = parse.duration(expiry, least=1, what="expiry") / 1e6
    wait_of(timeout)
    check_program(command[0])
    guarded = Guarded(command)
    try:
        code = on_tasks(store, partial(_hold, name=name, expiry=seconds, timeout=timeout, guarded=guarded))
    finally:
        guarded.close()
    ctx.exit(code)


async def _hold(handle: Tasks, *, name: str, expiry: float, timeout: str | None, guarded: Guarded) -> int:
    """Run the command under the lock; returns the exit code."""
    code = TEMPORARY
    async with anyio.create_task_group() as group:

        async def heed() -> None:
            nonlocal code
            count = 0
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                async for received in signals:
                    count += 1
                    if not holds:
                        code = 128 + received
                        group.cancel_scope.cancel()
                    elif count > 1:
                        guarded.send(signal.SIGKILL)
                    elif not (guarded.has_terminal and received == signal.SIGINT):
                        guarded.send(received)

        holds = False
        group.start_soon(heed)
        try:
            async with handle.lock(name, timeout=timeout, expiry=expiry) as fence:
                holds = True
                code = await guarded.run(fence, min(GRACE, expiry * _LAST))
        except TimeoutError as error:
            Failed(str(error)).show()
        except LockLost as error:
            raise Failed(
                f"the lock {name!r} couldn't be refreshed before it expired, so its command was ended: give "
                "it a longer --expiry, or see with `intervalq doctor` whether the store can be reached"
            ) from error
        group.cancel_scope.cancel()
    return code

"""`intervalq exec`: waits for a slot, then becomes another program."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import anyio
import click

from intervalq import IntervalQueue, SlotTimeout
from intervalq._line import Waiter
from intervalq._settings import wait_of
from intervalq.cli._app import Failed
from intervalq.cli._options import BeforeCommand, examples, pace_options, shared_store, store_option
from intervalq.cli._program import NOT_FOUND, NOT_STARTED
from intervalq.errors import InvalidOption

_TEMPORARY = 75
"""EX_TEMPFAIL of sysexits.h: it may work later."""


@click.command(
    "exec", cls=BeforeCommand, epilog=examples('intervalq exec --name mails --interval 1m -- echo "my turn"')
)
@click.option("--name", required=True, help="The queue: everybody who uses this name shares its pace.")
@pace_options
@click.option("--timeout", metavar="D", help="Wait no longer than this for a slot; then exit with code 75.")
@store_option
def exec_(
    *,
    name: str,
    interval: str | None,
    rate: str | None,
    timeout: str | None,
    store: str | None,
    command: tuple[str, ...],
) -> NoReturn:
    """Wait for a slot, then become another command.

    However many of these are started, by cron on many machines or by hand, their commands begin one interval
    apart. Exit codes are those of the command; 75 after --timeout; 127 if there is no such command.
    """
    if not command:
        raise InvalidOption("give the command to become after --, for example: -- echo hello")
    queue = IntervalQueue(name, interval=interval, rate=rate, store=store)
    shared_store(store)
    seconds = wait_of(timeout)
    _check(command[0])
    try:
        code = anyio.run(_become, queue, seconds, command)
    except SlotTimeout as error:
        raise Failed(str(error), _TEMPORARY) from None
    sys.exit(code)


def _check(program: str) -> None:
    """Know before the wait that there is nothing to wait for."""
    if shutil.which(program) is not None:
        return
    if os.path.dirname(program) and os.path.exists(program):  # noqa: PTH110, PTH120 - text, as execvp takes it
        raise Failed(f"{program}: can't be executed", NOT_STARTED)
    raise Failed(f"{program}: not found", NOT_FOUND)


async def _become(queue: IntervalQueue, seconds: float | None, command: tuple[str, ...]) -> int:
    stopped: list[int] = []

    async def heed(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for received in signals:
                stopped.append(received)
                scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(heed, group.cancel_scope)
        try:
            with anyio.fail_after(seconds):
                while True:
                    shard, slot = await queue.acquire(Waiter(), None)
                    # Connections are closed in order; the slot stays used. Then the last check: nothing but
                    # the system stands between it and the command.
                    await queue.close(drain=False)
                    if not shard.is_past(slot, shard.clock.now()):
                        _exec(command)
                    queue = queue.twin()
        except TimeoutError:
            raise SlotTimeout(queue.name, seconds or 0) from None
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5), suppress(Exception):
                await queue.close(drain=False)
    return 128 + stopped[0] if stopped else 0


def _exec(command: tuple[str, ...]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and what is ignored stays so
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - what this is for
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        sys.stderr.write(f"intervalq: {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(code)

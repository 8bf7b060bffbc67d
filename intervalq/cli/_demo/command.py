"""`intervalq demo`: the same calls to a rate-limited API, with a queue and without one."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final

import anyio
import click
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from intervalq import IntervalqError, IntervalQueue
from intervalq.cli._demo.api import summary
from intervalq.cli._options import STORE_TEXT, examples, shared_store
from intervalq.cli._run.program import GRACE, end_program
from intervalq.demo import LOOKUP, countries
from intervalq.demo.api import DemoAPI
from intervalq.store import given_url

_LIMIT: Final = 20
"""Calls that the API accepts in any second."""

_EACH: Final = 50
"""Milliseconds between two calls of a client that keeps to that limit alone."""

_TOGETHER: Final = 55
"""The interval of the queue, in milliseconds: slightly longer, because the latency of calls varies."""

_PYTHON: Final = Path(sys.executable)
_CLIENT: Final = f"{_PYTHON.name} -I -S {LOOKUP.name}"


@click.command(epilog=examples("intervalq demo", "intervalq demo --shards 8 --jobs 100"))
@click.option("--store", metavar="URL", help=f"{STORE_TEXT} Default: a SQLite file, removed afterwards.")
@click.option(
    "--shards",
    type=click.IntRange(1, 32),
    default=4,
    show_default=True,
    help="Processes that call the API.",
)
@click.option("--jobs", type=click.IntRange(1, 249), default=249, show_default=True, help="Number of calls.")
@click.pass_context
def demo(ctx: click.Context, *, store: str | None, shards: int, jobs: int) -> None:
    """Call a rate-limited API, with and without a queue.

    The API runs in this process, accepts 20 calls in any second, and counts them.
    """
    shared_store(store)
    with tempfile.TemporaryDirectory(prefix="intervalq-demo-") as folder:
        url = given_url(store) or str(Path(folder, "state.db"))
        ctx.exit(anyio.run(_Demo(url, Path(folder), shards, jobs).run))


class _Demo:
    def __init__(self, store: str, folder: Path, shards: int, jobs: int) -> None:
        path = os.pathsep.join([str(_PYTHON.parent), os.environ.get("PATH", os.defpath)])
        self._environment = {**os.environ, "INTERVALQ_STORE": store, "PATH": path}
        self._store, self._shards, self._jobs = store, shards, jobs
        self._where = LOOKUP.parent if jobs == len(countries()) else _shortened(folder, jobs)
        self._name = f"demo-{secrets.token_hex(2)}"
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._console.width = min(80, self._console.width)

    async def run(self) -> int:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as group:
                stopped: list[int] = []

                async def heed() -> None:
                    async for received in signals:
                        stopped.append(received)
                        group.cancel_scope.cancel()

                group.start_soon(heed)
                rejected = await self._show()
                group.cancel_scope.cancel()
        return 128 + stopped[0] if stopped else int(rejected > 0)

    async def _show(self) -> int:
        """Show both ways; returns how many calls were rejected in spite of the queue."""
        async with DemoAPI(limit=_LIMIT, window=1.0) as api:
            self._say(
                f"An API accepts {_LIMIT} calls in any second. {self._shards} processes have to make "
                f"{self._jobs} calls to it."
            )
            self._title("with intervalq: one pace for all of them")
            self._say(
                f"{_TOGETHER} ms is a little more than 1 s / {_LIMIT}, because the start of a program and "
                "the latency of a call vary."
            )
            await self._paced(api.url)
            paced = api.meter.report()
            self._verdict(paced)
            api.meter.reset()
            self._title(f"without: each of them makes at most {1000 // _EACH} calls a second")
            await self._alone(api.url)
            alone = api.meter.report()
            self._verdict(alone)
        self._title("so")
        self._say(
            f"Each on its own, {self._shards} processes make up to {self._shards * 1000 // _EACH} calls a "
            f"second, and {alone['rejected']} of {alone['calls']} were rejected. With one queue, "
            f"{paced['rejected']} of {paced['calls']} were rejected."
        )
        self._say("To repeat the commands, start `intervalq demo-api` and use its URL.")
        rejected: int = paced["rejected"]
        return rejected

    async def _paced(self, url: str) -> None:
        run = f"run countries.txt --name {self._name} --interval {_TOGETHER}ms --shards {self._shards}"
        client = f"-- {_CLIENT} {url} {{}}"
        self._command(f"intervalq {run} \\\n    {client} > /dev/null")
        command = [sys.executable, "-P", "-m", "intervalq", *run.split(), *client.split()]
        try:
            await self._wait_for(command)
        finally:
            with anyio.CancelScope(shield=True), suppress(IntervalqError):
                async with IntervalQueue(self._name, store=self._store) as queue:
                    await queue.drop()

    async def _alone(self, url: str) -> None:
        n = self._shards
        script = (
            f"for i in $(seq 0 {n - 1}); do\n"
            f'  awk "NR % {n} == $i" countries.txt | {{\n'
            f"    while read -r code; do\n"
            f"      {_CLIENT} {url} $code &\n"
            f"      sleep {_EACH / 1000:g}\n"
            "    done; wait; } &\n"
            "done; wait"
        )
        self._command(script)
        with self._console.status("calling"):
            await self._wait_for(["sh", "-c", script], stderr=DEVNULL)

    async def _wait_for(self, command: list[str], stderr: int | None = None) -> None:
        """Run a command to its end; if this is cancelled, end it and all that it started."""
        async with await anyio.open_process(
            command, stdin=DEVNULL, stdout=DEVNULL, stderr=stderr, cwd=self._where, env=self._environment,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                await process.wait()
            except BaseException:
                end_program(process.pid, kill=False)
                with anyio.CancelScope(shield=True), anyio.move_on_after(3 * GRACE):
                    await process.wait()
                raise

    # --- on the terminal ----------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self._console.print()
        self._console.print(Rule(Text(text, "bold"), align="left"))

    def _say(self, text: str) -> None:
        self._console.print(text)

    def _command(self, text: str) -> None:
        where = shlex.quote(str(self._where))
        self._console.print(Text(f"\n$ cd {where}", "cyan"), soft_wrap=True)
        self._console.print(Text(f"$ {text}\n", "cyan"), soft_wrap=True)

    def _verdict(self, report: Mapping[str, Any]) -> None:
        colour = "red" if report["rejected"] else "green"
        self._console.print(Text.assemble("\nThe API says: ", (summary(report), f"bold {colour}")))


def _shortened(folder: Path, jobs: int) -> Path:
    """A folder like that of the demo, with fewer countries."""
    (folder / "countries.txt").write_text("".join(f"{code}\n" for code in countries()[:jobs]))
    (folder / LOOKUP.name).write_bytes(LOOKUP.read_bytes())
    return folder

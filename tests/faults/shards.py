"""The driver's side of shard processes: starts, stops, kills and ends them, and records what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from faults.called import Called, now
from faults.verdict import Report, Stop

SCRIPT: Final = Path(__file__).with_name("shard_process.py")
_PATIENCE: Final = 120
"""Seconds after which a shard that should end is considered hanging."""

_SOON: Final = 60
"""Seconds within which jobs must begin again, even on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The arguments of every shard of a run."""

    url: str
    service: Path
    queue: str
    interval: float
    callers: int = 6
    lookahead: int = 16
    script: Path = SCRIPT
    more: tuple[str, ...] = ()


@dataclass(slots=True)
class Shard:
    """One process."""

    name: str
    process: subprocess.Popen[bytes]
    is_stopped: bool = False

    def tell(self, what: str) -> None:
        """Send it a line; one that has just died doesn't receive it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{what}\n".encode())
            self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stands(self) -> bool:
        """Whether the kernel says that it is stopped."""
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
            return stat.rpartition(") ")[2].startswith("T")
        return True  # there is no such file, so it can't be seen

    def bury(self) -> bytes:
        """Kill it and wait for its end; returns its output."""
        self.process.kill()
        output, _ = self.process.communicate()
        return output


@dataclass(slots=True)
class Shards:
    """All shards of a run."""

    work: Work
    alive: list[Shard] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    lived: list[str] = field(default_factory=list)
    """The shards that were not killed."""
    started: int = 0
    wrong: list[str] = field(default_factory=list)
    _since: dict[str, int] = field(default_factory=dict)

    def bury(self) -> None:
        """Leave none behind."""
        for shard in self.alive:
            shard.bury()

    def start(
        self,
        *,
        url: str = "",
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        base: int = 0,
        name: str = "",
    ) -> Shard:
        """Start a shard.

        Args:
            url: the store's URL for this one; empty: the common one.
            before: a command that starts it, such as `unshare --net`.
            environment: additional environment variables.
            base: how far its time since boot is ahead of this machine's, in microseconds.
            name: in the log; empty: the next number.
        """
        self.started += 1
        name = name or f"s{self.started}"
        work = self.work
        options = {
            "name": name, "url": url or work.url, "service": work.service, "queue": work.queue,
            "interval": work.interval, "callers": work.callers, "lookahead": work.lookahead, "base": base,
        }  # fmt: skip
        command = [*before, sys.executable, str(work.script)]
        command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
        process = subprocess.Popen(
            [*command, *work.more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # an interrupt from the keyboard must not reach it
        )
        shard = Shard(name, process)
        self.alive.append(shard)
        return shard

    def kill(self, shard: Shard) -> None:
        """Kill it, as `kill -9` does."""
        self.alive.remove(shard)
        shard.bury()

    def fallen(self) -> list[Shard]:
        """Collect shards that killed themselves as requested (see `die_in_step`) and are no longer alive."""
        fallen = [shard for shard in self.alive if shard.process.poll() is not None]
        for shard in fallen:
            self.alive.remove(shard)
            output, _ = shard.process.communicate()
            if shard.process.returncode != -signal.SIGALRM:
                self.wrong.append(
                    f"call: {shard.name} ended with {shard.process.returncode}: {output.decode()}"
                )
        return fallen

    def stop(self, shard: Shard, how: str = "") -> None:
        """Stop it until `go_on`: at once, or in its next step."""
        if not shard.is_stopped:
            shard.is_stopped = True
            self._since[shard.name] = now()
            if how:
                shard.tell(how)
            else:
                shard.signal(signal.SIGSTOP)

    def go_on(self, shard: Shard) -> bool:
        """Resume it if it was stopped; False: it hasn't stopped yet."""
        if shard.is_stopped:
            if not shard.stands():
                return False
            shard.is_stopped = False
            self.stops.append(Stop(shard.name, self._since.pop(shard.name), now()))
            shard.signal(signal.SIGCONT)
        return True

    def end(self) -> None:
        """End all shards, and collect their reports."""
        for shard in self.alive:
            shard.tell("end")
        for shard in list(self.alive):
            # Their input stays open meanwhile; their output fits into a pipe.
            deadline = time.monotonic() + _PATIENCE
            while shard.process.poll() is None and time.monotonic() < deadline:
                self.go_on(shard)  # one that was to stop itself may do so only now
                time.sleep(0.01)
            output = shard.bury()
            self.alive.remove(shard)
            if shard.process.returncode == -signal.SIGALRM:
                continue  # one that was to die in a step may do so only now
            self.lived.append(shard.name)
            if output:
                self.reports.append(report(output))


def report(reported: bytes) -> Report:
    """The output of a process."""
    values: dict[str, Any] = json.loads(reported)
    return Report(
        values["shard"],
        values["begun"],
        values["ended"],
        lost=tuple(values["lost"]),
        wrong=tuple(values["wrong"]),
        given_up=values["given_up"],
    )


def until_calls(
    called: Called, shards: Shards, *, after: int, least: int, of: Sequence[Shard] | None = None
) -> bool:
    """Wait until all live shards have begun this many jobs after an instant; False: they don't."""
    deadline = time.monotonic() + _SOON
    while True:
        for shard in shards.alive:
            shards.go_on(shard)  # one that was to stop itself may have done so only now
        begun = [start.shard for start in called.since(after)]
        if all(
            begun.count(shard.name) >= least for shard in of or shards.alive if shard.process.poll() is None
        ):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)

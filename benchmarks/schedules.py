"""Schedulers in one storm: two processes of each, one of which is killed again and again.

Each row has the same schedules, the same number of kills, and a server of its own. An occurrence is one slot of
the common grid: it was done once, twice, or not at all. `celery beat` is meant to run once, so it has a row with
one process, too. README.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
from platformdirs import user_cache_path

import _store  # noqa: F401 - it makes `servers` importable
import postgres_servers
import servers
from intervalq.tasks import Tasks

SCRIPT = Path(__file__).with_name("_schedule_peer.py")


@dataclass(frozen=True)
class Contender:
    """One row."""

    kind: str
    label: str
    package: str
    server: str = "postgres"
    processes: int = 2
    packages: tuple[str, ...] = ()
    """What is installed for it, in an environment of its own in the user's cache folder."""


_CELERY = ("celery==5.7.0", "redis", "packaging")
CONTENDERS = {
    "intervalq": Contender("intervalq", "intervalq.schedules", "intervalq"),
    "intervalq-durable": Contender("intervalq-durable", "intervalq, durable", "intervalq"),
    "apscheduler-3": Contender(
        "apscheduler-3",
        "APScheduler 3",
        "",
        packages=("apscheduler==3.11.3", "sqlalchemy", "psycopg[binary]"),
    ),
    "apscheduler-4": Contender(
        "apscheduler-4",
        "APScheduler 4",
        "",
        packages=("apscheduler==4.0.0a6", "sniffio", "greenlet", "sqlalchemy", "psycopg[binary]"),
    ),
    "celery-beat": Contender("celery-beat", "celery beat, two", "", "redis", packages=_CELERY),
    "celery-beat-1": Contender("celery-beat", "celery beat, one", "", "redis", 1, packages=_CELERY),
    "pgqueuer": Contender("pgqueuer", "pgqueuer", "", packages=("pgqueuer[asyncpg]==1.6.0",)),
}


@dataclass
class Row:
    """What became of a row's occurrences."""

    label: str
    fired: list[tuple[str, float]] = field(default_factory=list)
    kills: int = 0
    missing: str = ""

    def counts(self, every: int) -> Counter[str]:
        """How many occurrences happened once, several times and never, from the first to the last one."""
        slots = Counter((name, int(at // every)) for name, at in self.fired)
        if not slots:
            return Counter()
        first = min(slot for _, slot in slots) + 1  # the first may be cut by the start
        last = max(slot for _, slot in slots)
        names = {name for name, _ in slots}
        found = Counter[str]()
        for name in names:
            for slot in range(first, last):
                count = slots[name, slot]
                found["once" if count == 1 else "doubled" if count else "lost"] += 1
        return found


@contextlib.contextmanager
def server_of(contender: Contender) -> Iterator[str]:
    """The URL of a new server."""
    made = (
        postgres_servers.postgres()
        if contender.server == "postgres"
        else servers.redis_server(servers.redis_binary(), "--appendonly", "yes", "--appendfsync", "always")
    )
    made.start()
    try:
        yield made.url
    finally:
        made.close()


def python_of(contender: Contender) -> str:
    """The Python that has a contender's packages, which are installed at the first time."""
    if not contender.packages:
        return sys.executable
    place = user_cache_path("intervalq-benchmarks") / "-".join(contender.packages).replace("[", "-").replace(
        "]", ""
    )
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *contender.packages], check=True)
        (place / "ready").touch()
    return str(python)


class Driver:
    """Runs a contender's processes, and kills them in turns."""

    def __init__(self, contender: Contender, given: argparse.Namespace, url: str, folder: Path) -> None:
        self._contender, self._given = contender, given
        self._log = folder / "log"
        self._log.touch()
        self._environment = {
            **os.environ,
            "SCHEDULES_URL": url,
            "SCHEDULES_LOG": str(self._log),
            "SCHEDULES_COUNT": str(given.schedules),
            "SCHEDULES_EVERY": str(given.every),
        }
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def prepare(self) -> None:
        """Create the tables of pgqueuer, which its processes don't."""
        command = [python_of(self._contender), str(SCRIPT), "pgqueuer-install"]
        subprocess.run(command, env=self._environment, check=True)

    def start(self, place: int) -> subprocess.Popen[bytes]:
        """Start the process with this number."""
        command = [python_of(self._contender), str(SCRIPT), self._contender.kind]
        state = {"SCHEDULES_STATE": str(self._folder / f"beat{place}")}
        with (self._folder / f"errors{place}").open("ab") as errors:
            return subprocess.Popen(
                command, env=self._environment | state, stdout=errors, stderr=errors, start_new_session=True
            )

    def kill(self, place: int) -> None:
        """Kill a process, with those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[place].pid, 9)
        self.processes[place].wait()

    async def storm(self) -> int:
        """Start, kill and start again; returns the number of kills."""
        self.processes = [self.start(place) for place in range(self._contender.processes)]
        await anyio.sleep(self._given.warm)
        kills, end = 0, time.monotonic() + self._given.seconds
        while time.monotonic() < end:
            await anyio.sleep(self._given.kill_every)
            place = kills % self._contender.processes
            self.kill(place)
            kills += 1
            await anyio.sleep(1)
            self.processes[place] = self.start(place)
        await anyio.sleep(self._given.warm)
        for place in range(self._contender.processes):
            self.kill(place)
        return kills

    def noted(self) -> list[tuple[str, float]]:
        """What the functions of the schedules noted."""
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [(name, float(at)) for name, at in lines]


async def _takes_tasks(url: str, fired: list[tuple[str, float]]) -> None:
    """Take the tasks of durable schedules. The id says which occurrence it is; a double has another time."""
    seen: set[tuple[str, float]] = set()
    async with Tasks(url) as tasks:
        async for claim in tasks.pull("out", name="driver"):
            if (claim.id, claim.created) not in seen:
                seen.add((claim.id, claim.created))
                name, _, at = claim.id.partition("/")
                fired.append((name, datetime.fromisoformat(at).timestamp()))
            await claim.ack()


async def _takes_messages(url: str, fired: list[tuple[str, float]]) -> None:
    """Take the messages of celery beat from its queue."""
    import redis.asyncio  # noqa: PLC0415 - only for that contender

    client = redis.asyncio.Redis.from_url(url)
    while True:
        answer = await client.brpop(["celery"], timeout=1)
        if answer is None:
            continue
        arguments = json.loads(base64.b64decode(json.loads(answer[1])["body"]))[0]
        fired.append((arguments[0], time.time()))


async def _run(contender: Contender, given: argparse.Namespace, url: str, row: Row) -> None:
    takers: dict[str, Callable[[str, list[tuple[str, float]]], Any]] = {
        "intervalq-durable": _takes_tasks,
        "celery-beat": _takes_messages,
    }
    with tempfile.TemporaryDirectory(prefix="intervalq-") as folder:
        driver = Driver(contender, given, url, Path(folder))
        if contender.kind == "pgqueuer":
            driver.prepare()
        taker = takers.get(contender.kind)
        taking = None if taker is None else asyncio.ensure_future(taker(url, row.fired))
        try:
            row.kills = await driver.storm()
        finally:
            for place in range(len(driver.processes)):
                driver.kill(place)
            if taking is not None:
                taking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await taking
        row.fired += driver.noted()
        if not row.fired:
            row.missing = (Path(folder) / "errors0").read_text().strip().splitlines()[-1:][0]


def main() -> int:
    """Run all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CONTENDERS), help=f"some of {','.join(CONTENDERS)}")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--every", type=int, default=2, help="seconds between two occurrences")
    parser.add_argument("--seconds", type=float, default=60, help="how long the storm of a row takes")
    parser.add_argument("--kill-every", type=float, default=5, help="seconds between two kills")
    parser.add_argument("--warm", type=float, default=10, help="calm seconds before and after it")
    given = parser.parse_args()
    print(f"{given.schedules} schedules every {given.every} s, a kill -9 every {given.kill_every:g} s")
    print(f"{'':22}{'version':>10}{'kills':>7}{'once':>7}{'doubled':>9}{'lost':>7}")
    for name in given.only.split(","):
        contender = CONTENDERS[name]
        row = Row(contender.label)
        print(f"{contender.label} ...", end="\r", file=sys.stderr, flush=True)
        with server_of(contender) as url:
            try:
                asyncio.run(_run(contender, given, url, row))
            except (ImportError, subprocess.CalledProcessError) as error:
                row.missing = str(error)
        shown = contender.packages[0].partition("==")[2] if contender.packages else version(contender.package)
        if row.missing:
            print(f"{row.label:22}{shown:>10}  missing: {row.missing}", flush=True)
            continue
        found = row.counts(given.every)
        numbers = "".join(
            f"{found[what]:>{width}}" for what, width in (("once", 7), ("doubled", 9), ("lost", 7))
        )
        print(f"{row.label:22}{shown:>10}{row.kills:>7}{numbers}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Cuts the power of a store while several processes use it, and judges which of their work it still knows.

    python tests/faults/power.py --store postgres --cuts 20
    python tests/faults/power.py --store postgres --plant commit

This process records, off the failing disk, every answer that the processes get; at the moment of the failure
they are stopped. Everything that was answered must exist afterwards: inserted tasks, ends of tasks, tickets,
slots in which jobs began, and rows of ledgers that were started or recorded. With a planted bug, the store
doesn't sync before it answers, which must be detected. The exit code is 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
import postgres_servers
import servers
from faults.disk import Disk
from faults.power_process import LEDGER, QUEUE
from intervalq import IntervalQueue
from intervalq.errors import IntervalqError, LedgerNotFound, QueueNotFound
from intervalq.ledger import Ledger
from intervalq.store import open_store
from intervalq.tasks import Tasks

_WITHIN = 60.0
"""Seconds within which clients report something, even on a busy machine."""


# --- stores -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """A store on a disk whose power can be cut."""

    urls: dict[str, str]
    """The URLs of `tasks`, `slots` and `rows`; there may be no tasks, and no rows."""
    disk: Disk
    server: servers.Server | None = None

    def cut(self) -> None:
        """Restart after the power failed; only its server may use the disk."""
        if self.server is not None:
            self.server.stop()
        self.disk.cut()
        if self.server is not None:
            self.server.start()


# Files and PostgreSQL tolerate a disk that keeps no name until its folder is synced. Redis, Valkey and NATS
# sync no folders: they rely on file systems whose journal is one sequence, as ext4's and XFS's are.


@contextmanager
def _files(_: str, **forms: str) -> Iterator[Store]:
    with Disk(strict=True) as disk:
        yield Store({part: form.format(disk.path) for part, form in forms.items()}, disk)


def _served(disk: Disk, server: servers.Server, *parts: str) -> Store:
    return Store(dict.fromkeys(("tasks", "slots", *parts), server.url), disk, server)


@contextmanager
def _redis(plant: str, binary: Callable[[], Path]) -> Iterator[Store]:
    with Disk() as disk:
        sync = "always" if plant == NONE else plant
        options = ("--dir", str(disk.path), "--appendonly", "yes", "--appendfsync", sync)
        with servers.running(servers.redis_server(binary(), *options)) as server:
            yield _served(disk, server, "rows")


@contextmanager
def _postgres(plant: str) -> Iterator[Store]:
    server = postgres_servers.postgres()
    with ExitStack() as stack:
        stack.callback(server.close)
        data = server.folder.path / "data"
        if plant != NONE:
            with (data / "postgresql.auto.conf").open("a") as settings:
                settings.write(f"{plant} = off\n")
        disk = stack.enter_context(Disk(data, strict=True))
        yield _served(disk, server.start(), "rows")


@contextmanager
def _nats(plant: str) -> Iterator[Store]:
    folder = servers.Folder("nats")
    settings = folder.path / "nats.conf"
    settings.write_text(f"jetstream {{ sync_interval: {'always' if plant == NONE else plant} }}\n")
    with ExitStack() as stack:
        stack.callback(folder.remove)
        disk = stack.enter_context(Disk())
        options = ("-sd", str(disk.path), "-c", str(settings))
        server = stack.enter_context(servers.running(servers.nats_server(*options, folder=folder)))
        yield _served(disk, server)


NONE = "-"
STORES: dict[str, Callable[[str], AbstractContextManager[Store]]] = {
    "json": partial(_files, slots="file://{}/new/state.json", rows="file://{}/new/rows.json"),
    "sqlite": partial(
        _files,
        slots="sqlite://{}/new/state.db",
        tasks="sqlite://{}/new/tasks.db",
        rows="sqlite://{}/new/rows.db",
    ),
    "redis": partial(_redis, binary=servers.redis_binary),
    "valkey": partial(_redis, binary=servers.valkey_binary),
    "postgres": _postgres,
    "nats": _nats,
}
PLANTS = {
    "json": ("contents", "folder"),
    "sqlite": ("log", "folder"),
    "redis": ("no", "everysec"),
    "valkey": ("no", "everysec"),
    "postgres": ("fsync", "synchronous_commit"),
    "nats": ("2m", "1s"),
}
"""The bugs that can be planted in each store. The second bug of a server syncs, but a moment too late: only
answers of that moment are lost.
"""


# --- what was acknowledged --------------------------------------------------------------------------


@dataclass(slots=True)
class Account:
    """What the processes reported, over all cuts."""

    reported: list[list[Any]] = field(default_factory=list)

    def of(self, what: str) -> list[list[Any]]:
        return [rest for word, *rest in self.reported if word == what]

    def values(self, what: str) -> set[str]:
        return {value for (value,) in self.of(what)}


class Clients:
    """Processes that use a store, and print what it acknowledged."""

    def __init__(self, store: Store, names: list[str], plant: str) -> None:
        self._from, into = os.pipe()
        script = str(Path(__file__).with_name("power_process.py"))
        urls = [f"{part}={url}" for part, url in store.urls.items()]
        self._processes = [
            subprocess.Popen([sys.executable, script, name, plant, *urls], stdout=into) for name in names
        ]
        os.close(into)
        self._rest = b""

    def hear(self) -> list[list[Any]]:
        """What they reported meanwhile; nothing: all of them have ended."""
        if not select.select([self._from], [], [], _WITHIN)[0]:
            raise TimeoutError(f"no process said anything for {_WITHIN:g} s")
        lines = (self._rest + os.read(self._from, 1 << 16)).split(b"\n")
        self._rest = lines.pop()
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """Stop all of their threads."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)
        for process in self._processes:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        self.kill()
        for process in self._processes:
            process.wait()
        os.close(self._from)


def cut(store: Store, account: Account, names: list[str], plant: str, *, after: int) -> None:
    """Cut the power when processes of these names have reported this much, and restart."""
    clients = Clients(store, names, plant)
    try:
        heard = Counter[str]()
        while min(heard[word] for part in store.urls for word in WORDS[part]) < after:
            lines = clients.hear()
            if not lines:
                raise RuntimeError("all the processes have ended")
            account.reported += lines
            heard.update(one[0] for one in lines)
        clients.stop()
        store.disk.fail()
        clients.kill()
        while lines := clients.hear():  # reports in the pipe were made before
            account.reported += lines
    finally:
        clients.close()
    store.cut()


WORDS = {"tasks": ("inserted", "ended"), "slots": ("began", "saw"), "rows": ("started", "recorded")}
"""What is counted of the clients' reports."""


# --- the judges -------------------------------------------------------------------------------------


async def judge_tasks(url: str, account: Account) -> list[str]:
    """Each task whose insert was answered exists or was ended; one whose end was answered doesn't exist."""
    async with Tasks(url) as store:
        found = [task.value for task in await store.tasks(QUEUE, limit=None)]
        await store.insert("another", 1)
    there = set(found)
    faults = {
        "inserted, and gone": account.values("inserted") - there - account.values("ending"),
        "ended, and back": account.values("ended") & there,
        "there twice": {value for value in there if found.count(value) > 1},
    }
    return [f"{what}: {sorted(which)[:5]}, {len(which)} of them" for what, which in faults.items() if which]


async def judge_slots(url: str, account: Account) -> list[str]:
    """No ticket is issued again, and no job begins too soon after another one that began."""
    issued: dict[str, tuple[int, int]] = {}  # the last ticket, and the highest that was granted
    due: dict[str, float] = {}
    for name, ticket, current in account.of("saw") + [[*one[:2], one[1]] for one in account.of("began")]:
        before = issued.get(name, (0, 0))
        issued[name] = max(before[0], ticket), max(before[1], current)
    for name, _, at in account.of("began"):
        due[name] = max(due.get(name, 0.0), at)
    faults = []
    store = open_store(url)
    for name, (ticket, current) in issued.items():
        try:
            state = await IntervalQueue(name, store=store).inspect()
        except QueueNotFound:
            faults.append(f"{name}: it is gone")
            continue
        if state.ticket < ticket or state.current < current:
            faults.append(f"{name}: it was at {ticket}, {current}, and is at {state.ticket}, {state.current}")
        if state.next_slot is None or (name in due and state.next_slot < due[name] + state.spacing):
            faults.append(f"{name}: after {due.get(name)} the next job may begin at {state.next_slot}")
    await store.aclose()
    return faults


async def judge_rows(url: str, account: Account) -> list[str]:
    """Each row whose start was answered exists, and each row whose end was answered has that end."""
    async with Ledger(LEDGER, url) as ledger:
        try:
            ends = {row.key: row.value if row.state == "done" else None async for row in ledger.rows()}
        except LedgerNotFound:
            ends = {}
    recorded = account.values("recorded")
    faults = {
        "started, and gone": account.values("started") - recorded - set(ends),
        "recorded, and not": {key for key in recorded if ends.get(key) != key},
    }
    return [
        f"rows {what}: {sorted(which)[:5]}, {len(which)} of them" for what, which in faults.items() if which
    ]


JUDGES = {"tasks": judge_tasks, "slots": judge_slots, "rows": judge_rows}


def trial(name: str, *, cuts: int, after: int, plant: str = NONE) -> tuple[int, list[str]]:
    """Cut the power this often, each time after a number of answers of each kind; stop at a violation.

    Returns how many answers there were, and the violations.
    """
    account = Account()
    faults: list[str] = []
    with STORES[name](plant) as store:
        for number in range(cuts):
            names = [f"{number}.{each}" for each in range(2 if plant == NONE else 1)]
            cut(store, account, names, plant, after=after)
            for part, url in store.urls.items():
                try:
                    faults += anyio.run(JUDGES[part], url, account)
                except IntervalqError as error:
                    faults.append(f"{part} after the cut: {error}")
            if faults:
                break
    return len(account.reported), faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=list(STORES), default="postgres")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--after", type=int, default=20, help="answers of each kind before each cut")
    parser.add_argument("--plant", default=NONE, help=f"a bug, of {PLANTS}")
    wanted = parser.parse_args()
    answers, faults = trial(wanted.store, cuts=wanted.cuts, after=wanted.after, plant=wanted.plant)
    print("\n".join(faults) or "all as it should be", f"({answers} answers)")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

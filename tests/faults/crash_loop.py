"""Workers that end by SIGKILL after a number of tasks, again and again: what becomes of harmless tasks?

    python tests/faults/crash_loop.py --store postgres --tasks 3000 --each 300
    python tests/faults/crash_loop.py --store sqlite --tasks 20000 --each 0 --poison

The workers write a ledger, which is judged: every task must be done and none dead, except the poison, which
must be dead; and a task that had ended may run again only if it ended in the moment before a kill. The exit
code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
import postgres_servers
import servers
from faults.crash_process import POISON
from intervalq.tasks import Tasks
from intervalq.tasks.store import Following

_TICK = 0.01
"""How far the times of files may lag, in seconds."""

MAX_AGAIN = 120
"""The most ended tasks that one kill may repeat: those whose end was not sent yet."""


@contextmanager
def _server(start: Callable[[], servers.Server]) -> Iterator[str]:
    server = start().start()
    try:
        yield server.url
    finally:
        server.close()


@contextmanager
def _pooled() -> Iterator[str]:
    with (
        _server(postgres_servers.postgres) as url,
        _server(lambda: postgres_servers.pgbouncer(url)) as pooled,
    ):
        yield pooled


@contextmanager
def _file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="intervalq-") as folder:
        yield f"sqlite://{folder}/tasks.db"


STORES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "postgres": lambda: _server(postgres_servers.postgres),
    "pgbouncer": _pooled,
    "redis": lambda: _server(lambda: servers.redis_server(servers.redis_binary())),
    "nats": lambda: _server(servers.nats_server),
    "sqlite": _file,
}


@dataclass(slots=True)
class Loop:
    """The figures in the ledger."""

    kills: int = 0
    lost: list[int] = field(default_factory=list)
    """Neither done nor dead."""
    dead: list[int] = field(default_factory=list)
    left: int = 0
    """Tasks that were not done when the last process had ended."""
    again: list[tuple[int, int]] = field(default_factory=list)
    """For each process, in order: how many tasks that ended in it were begun again, and how many ended."""
    overcharged: int = 0
    """Starts whose attempt was higher than the number of the task's starts so far."""
    begun: Counter[int] = field(default_factory=Counter)
    """How often each task was begun."""
    batched: bool = False
    """Whether a follow-up waits for the end of all."""
    follow_up: str = ""
    """What is wrong with the task that waited for the end of all; empty: nothing."""

    def faults(self, *, poison: bool) -> list[str]:
        """The violations."""
        found = []
        if self.lost or self.left:
            found.append(f"lost {len(self.lost)}, left {self.left}")
        if self.dead != ([POISON] if poison else []):
            found.append(f"dead: {self.dead[:10]}, {len(self.dead)} of them")
        if self.overcharged:
            found.append(f"{self.overcharged} begins were counted more often than they happened")
        if self.follow_up:
            found.append(self.follow_up)
        if any(again > max(MAX_AGAIN, done // 10) for again, done in self.again):
            found.append(f"done again after a kill, of how many that it had done: {self.again}")
        return found

    def __str__(self) -> str:
        most = max(self.begun.values(), default=0)
        again = [again for again, _ in self.again]
        return (
            f"{self.kills} kills; dead {len(self.dead)}, lost {len(self.lost)}, left {self.left}; "
            f"done again {sum(again)}, after one kill at most {max(again, default=0)}; a task was "
            f"begun {most} times at most, the poison {self.begun[POISON]} times"
        )


def run(
    url: str,
    *,
    tasks: int,
    each: int,
    plain: bool = False,
    poison: bool = False,
    expiry: float | None = None,
    most: int | None = None,
) -> Loop:
    """Run one whole loop, in a queue of its own."""
    queue = f"loop{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="intervalq-") as folder:
        ledger = Path(folder) / "ledger"
        ledger.touch()
        batched = anyio.run(_insert, url, queue, tasks, plain, poison)
        settings = ["-" if value is None else str(value) for value in (expiry, most)]
        command = [sys.executable, str(Path(__file__).with_name("crash_process.py")), url, queue, str(ledger)]
        ended = subprocess.run([*command, str(each), *settings], check=True, stdout=subprocess.PIPE)
        loop = Loop(kills=int(ended.stdout), batched=batched)
        anyio.run(_judge, loop, url, queue, ledger, [*range(tasks), *([POISON] if poison else [])])
        return loop


async def _insert(url: str, queue: str, count: int, plain: bool, poison: bool) -> bool:
    """Insert the tasks, and say whether they are a batch with a follow-up."""
    values = list(range(count))
    if poison:
        values.insert(count // 2, POISON)
    async with Tasks(url) as tasks:
        if plain:
            await tasks.put(queue, values)
            return False
        if isinstance(tasks._here(), Following):
            follow_up = tasks.new(f"{queue}-then", "all have ended")
            await tasks.batch([tasks.new(queue, value) for value in values], follow_up)
            return True
        for first in range(0, len(values), 1000):
            await tasks.modify(*[tasks.new(queue, value) for value in values[first : first + 1000]])
    return False


async def _judge(loop: Loop, url: str, queue: str, ledger: Path, values: list[int]) -> None:
    async with Tasks(url) as tasks:
        loop.left = sum(one.size for one in await tasks.queues(queue))
        loop.dead = [task.value for task in await tasks.tasks(f"{queue}.dead", limit=None)]
        if loop.batched:
            then = await tasks.tasks(f"{queue}-then")
            if len(then) != 1:
                loop.follow_up = f"{len(then)} follow-ups instead of one"
            elif then[0]._row.waiting or then[0].at < ledger.stat().st_mtime - _TICK:
                loop.follow_up = f"the follow-up waits, or came before the last end: {then[0]._row}"
    ended: dict[str, set[int]] = defaultdict(set)
    again: Counter[str] = Counter()
    last: dict[int, str] = {}
    for line in ledger.read_text().splitlines():
        what, number, attempt, process = line.split()
        value = int(number)
        if what == "begin":
            loop.begun[value] += 1
            loop.overcharged += int(attempt) > loop.begun[value]
            if value in last:
                again[last[value]] += 1
            ended.setdefault(process, set())
        else:
            ended[process].add(value)
            last[value] = process
    loop.again = [(again[process], len(done)) for process, done in ended.items()]
    loop.lost = [value for value in values if value not in last and value not in loop.dead]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=list(STORES), default="postgres")
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--each", type=int, default=300, help="a worker ends after so many; 0: never")
    parser.add_argument("--plain", action="store_true", help="plain tasks")
    parser.add_argument("--poison", action="store_true", help="one task ends its worker, and may do so twice")
    parser.add_argument("--expiry", type=float, default=None)
    wanted = parser.parse_args()
    with STORES[wanted.store]() as url:
        loop = run(
            url, tasks=wanted.tasks, each=wanted.each, plain=wanted.plain, poison=wanted.poison,
            expiry=wanted.expiry, most=2 if wanted.poison else None,
        )  # fmt: skip
    print(loop)
    faults = loop.faults(poison=wanted.poison)
    print("\n".join(faults) or "all as it should be")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

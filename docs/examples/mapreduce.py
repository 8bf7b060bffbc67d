"""MapReduce on durable tasks: counts words over several processes, and checks the sum against one process.

    python docs/examples/mapreduce.py --mappers 4 --reducers 3 --chaos README.md

A mapper claims a document, counts its words, and in one step inserts a task for each shard that has some of
them and removes its own. The reducer of a shard merges such tasks, many into one, until no document and only
one task is left, which goes to the output. With `--chaos`, another process claims tasks without doing them
and is killed repeatedly: every word is counted once all the same.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final

import anyio
from anyio.abc import Process

from intervalq.errors import ClaimLost, DependencyError, IntervalqError, InvalidOption
from intervalq.store import shown_url
from intervalq.tasks import Claim, Task, Tasks
from intervalq.tasks.rules import Insert
from intervalq.tasks.store import MAX_ROWS

EXPIRY: Final = 1.0
"""Seconds until the claims of a killed process are released if the store can't detect its death."""

_LARGEST: Final = 32 << 20
"""The size limit of a task in bytes: the sums of one shard form one task."""

_PIECE: Final = 50_000
"""The maximum length of a document in characters; longer files are split."""

_BATCH: Final = 50
_ROUNDS: Final = 4
"""How many times the obstructing process is started at most, so that the others can finish."""

_TAKES: Final = 3
"""How many tasks one such process claims before it is killed."""

_MORE: Final = 0.2
"""Seconds that it has to claim the others after the first one."""

_WORD: Final = re.compile(r"[^\W\d_]+")


class PartError(Exception):
    """A process of a count failed; it printed the reason."""

    def __init__(self, part: str, code: int) -> None:
        super().__init__(f"part {part} ended with exit code {code}")


class Names:
    """The queues of one count."""

    def __init__(self, prefix: str, reducers: int) -> None:
        self.documents = f"{prefix}.map"
        self.shards = [f"{prefix}.reduce-{shard}" for shard in range(reducers)]
        self.output = f"{prefix}.output"

    @property
    def every(self) -> tuple[str, ...]:
        """All of them."""
        return (self.documents, *self.shards, self.output)


def words(text: str) -> Counter[str]:
    """How often each word occurs in a text."""
    return Counter(word.lower() for word in _WORD.findall(text))


def pieces(text: str) -> list[str]:
    """A text split into documents, none of which ends within a word."""
    made = []
    while len(text) > _PIECE:
        gap = text.rfind(" ", 0, _PIECE) + 1 or _PIECE
        made.append(text[:gap])
        text = text[gap:]
    return [*made, text]


# --- the parts ----------------------------------------------------------------------------------------


async def map_documents(handle: Tasks, names: Names) -> None:
    """Run a mapper until there are no documents."""

    # Without a limit of attempts: a task whose process dies has not failed itself.
    @handle.worker(names.documents, max_attempts=None, concurrency=1)
    async def count(task: Task) -> list[Insert]:
        shards: dict[str, dict[str, int]] = {}
        for word, times in sorted(words(task.value).items()):
            shard = names.shards[zlib.crc32(word.encode()) % len(names.shards)]
            shards.setdefault(shard, {})[word] = times
        return [handle.new(shard, counts) for shard, counts in shards.items()]

    await handle.run(until_empty=True)


async def reduce_shard(handle: Tasks, names: Names, shard: int) -> None:
    """Run the reducer of a shard until its sum is in the output."""
    queue = names.shards[shard]
    pull = handle.pull(queue, name=f"{queue}-reducer".replace(" ", "-"), max_ack_pending=None)
    held: list[Claim] = []
    while True:
        held = [claim for claim in held if claim.open] + await pull.fetch(_BATCH, timeout=0.2)
        if len(held) > 1:
            await _merge(handle, queue, held)
            held = []
            continue
        # What is claimed counts, too: documents and tasks that somebody else has are still to come.
        sizes = {each.name: each.size for each in await handle.queues(names.documents, queue)}
        if names.documents not in sizes and sizes.get(queue, 0) <= len(held):
            with suppress(ClaimLost):  # this process stalled, and another one may have the task by now
                for claim in held:
                    await claim.ack(handle.new(names.output, claim.value))
                return


async def _merge(handle: Tasks, queue: str, held: Sequence[Claim]) -> None:
    """Merge many tasks into one: the sum is inserted and the others are removed, or nothing is done."""
    first, *others = held
    total = Counter[str]()
    for claim in held:
        total.update(claim.value)
    merged = handle.new(queue, dict(sorted(total.items())))
    try:
        await first.ack(merged, *(claim.delete() for claim in others))
    except (ClaimLost, DependencyError):  # some are another's now; the rest is counted later
        for claim in held:
            with suppress(ClaimLost):
                await claim.release()


async def claim_and_do_nothing(handle: Tasks, names: Names) -> None:
    """Obstruct the count: print when something was claimed, and never do it."""
    for _ in range(_TAKES):
        await handle.claim(names.documents, *names.shards)
        sys.stdout.write("claimed\n")
        sys.stdout.flush()
    await anyio.sleep_forever()


# --- the whole ----------------------------------------------------------------------------------------


async def insert_documents(handle: Tasks, names: Names, texts: Iterable[str]) -> int:
    """Insert the documents; return the number of tasks."""
    parts = [handle.new(names.documents, piece) for text in texts for piece in pieces(text)]
    for start in range(0, len(parts), MAX_ROWS):
        await handle.modify(*parts[start : start + MAX_ROWS])
    return len(parts)


async def take_output(handle: Tasks, names: Names) -> list[dict[str, int]]:
    """Remove the sums from the output and return them."""
    sums = await handle.tasks(names.output, limit=None)
    await handle.modify(*(task.delete() for task in sums))
    return [task.value for task in sums]


class Count:
    """One count over several processes."""

    def __init__(self, store: str, names: Names, *, mappers: int, chaos: bool) -> None:
        self.kills = 0
        """How many processes were killed that had claimed something."""
        self._store, self._names, self._mappers, self._chaos = store, names, mappers, chaos

    async def run(self, texts: Sequence[str]) -> list[dict[str, int]]:
        """The sums of the shards.

        Raises:
            PartError: a mapper or reducer failed; in an exception group.
        """
        names = self._names
        async with Tasks(self._store, max_bytes=_LARGEST, expiry=EXPIRY) as handle:
            await insert_documents(handle, names, texts)
            async with anyio.create_task_group() as group:
                if self._chaos:
                    await group.start(self._disturb)
                async with anyio.create_task_group() as work:
                    for _ in range(self._mappers):
                        work.start_soon(self._part, "map")
                    for shard in range(len(names.shards)):
                        work.start_soon(self._part, str(shard))
                group.cancel_scope.cancel()
            return await take_output(handle, names)

    async def _part(self, part: str) -> None:
        async with await self._start(part) as process:
            if code := await process.wait():
                raise PartError(part, code)

    async def _disturb(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Repeatedly start the obstructing process, and kill it when it has claimed tasks."""
        for turn in range(_ROUNDS):
            async with await self._start("chaos", stdout=PIPE) as process:
                try:
                    assert process.stdout is not None
                    printed = await process.stdout.receive()
                    with anyio.move_on_after(_MORE):
                        while printed.count(b"\n") < _TAKES:
                            printed += await process.stdout.receive()
                    self.kills += 1
                finally:
                    process.kill()
            if turn == 0:
                task_status.started()

    async def _start(self, part: str, stdout: int | None = None) -> Process:
        # The store isn't an argument: `ps` shows arguments to everybody, and its URL may hold a password.
        command = [sys.executable, __file__, "--part", part]
        command += ["--name", self._names.documents.removesuffix(".map")]
        return await anyio.open_process(
            [*command, "--reducers", str(len(self._names.shards))],
            stdin=DEVNULL, stdout=stdout, stderr=None, env={**os.environ, "INTERVALQ_STORE": self._store},
        )  # fmt: skip


async def _be(part: str, names: Names) -> None:
    """Run one part of a count, in a process of its own."""
    async with Tasks(max_bytes=_LARGEST, expiry=EXPIRY) as handle:
        if part == "map":
            await map_documents(handle, names)
        elif part == "chaos":
            await claim_and_do_nothing(handle, names)
        else:
            await reduce_shard(handle, names, int(part))


def some_texts() -> list[str]:
    """Python's own documentation: texts that are available wherever Python is."""
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte

    return list(topics.values())


# --- the command --------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Count words; return the exit code: 1 if the result is wrong."""
    given = _parser().parse_args(arguments)
    names = Names(given.name, given.reducers)
    if given.part is not None:
        anyio.run(_be, given.part, names)
        return 0
    try:
        texts = [Path(path).read_text(encoding="utf-8", errors="replace") for path in given.files]
        return _count(texts or some_texts(), names, given)
    except (OSError, IntervalqError) as error:
        sys.stderr.write(f"mapreduce: {error}\n")
        return 2
    except ExceptionGroup as errors:
        if errors.split(PartError)[1] is not None:
            raise
        sys.stderr.write(f"mapreduce: {errors.exceptions[0]}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Count words, as MapReduce on durable tasks.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="texts (default: Python's help topics)")
    parser.add_argument("--store", metavar="URL", help="default: a SQLite file, removed afterwards")
    parser.add_argument("--mappers", type=_several, default=4, metavar="N", help="processes that count (4)")
    parser.add_argument("--reducers", type=_several, default=3, metavar="N", help="processes that add up (3)")
    parser.add_argument("--chaos", action="store_true", help="also run and kill a process that claims tasks")
    parser.add_argument("--name", default="mr", help="the prefix of the queues' names (mr)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser


def _several(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError("give a number from 1 to 64")
    return int(text)


def _count(texts: list[str], names: Names, given: Any) -> int:  # noqa: ANN401 - argparse's
    with tempfile.TemporaryDirectory(prefix="intervalq-mapreduce-") as folder:
        store = given.store or f"sqlite://{folder}/tasks.db"
        if store.startswith("memory:"):
            raise InvalidOption("processes can't share tasks in memory: use a file or postgresql://")
        count = Count(store, names, mappers=given.mappers, chaos=given.chaos)
        sums = anyio.run(count.run, texts)
        where = shown_url(store)
    right = sum(map(words, texts), Counter[str]())
    total = added(sums)
    for word, times in total.most_common(10):
        sys.stdout.write(f"{times:>8}  {word}\n")
    sys.stdout.write(
        f"{total.total()} words, {len(total)} different, in {len(texts)} texts: {given.mappers} mappers, "
        f"{given.reducers} reducers, {where}\n"
    )
    if given.chaos:
        sys.stdout.write(f"{count.kills} processes killed that had claimed tasks\n")
    if total != right:
        sys.stdout.write(f"wrong: one process counts {right.total()} words\n")
        return 1
    sys.stdout.write("the same as one process counts\n")
    return 0


def added(sums: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sums of all shards combined."""
    total = Counter[str]()
    for each in sums:
        total.update(each)
    return total


if __name__ == "__main__":
    sys.exit(main())

"""Follows the execution logs of queues while these write them, and keeps what they say of the last starts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from intervalq._page.charts import gap_counts
from intervalq._show import escaped, seconds
from intervalq._watch.log import Note, QueueLog, add, percentile
from intervalq.errors import InvalidOption

_STARTS: Final = 2_000
"""How many of the last starts of each queue are kept."""

_QUEUES: Final = 1_000
"""How many queues are kept: those with the last lines."""

_BEFORE: Final = 4_000_000
"""The maximum number of bytes that are read of the content which a log has at first: its end."""

_NAMED: Final = 5


class Gaps(NamedTuple):
    """The gaps between the last starts of a queue."""

    counts: Sequence[int]
    """How many there are by length: see `gap_counts`."""
    promise: float | None
    """The shortest gap that is promised, in intervals; None: none is, as with a burst."""


class Seen(NamedTuple):
    """What the logs say of the last starts of a queue."""

    facts: Sequence[tuple[str, str]] = ()
    gaps: Gaps | None = None
    notes: Sequence[Note] | None = None
    """None: no log has anything of it."""


_NOTHING: Final = Seen()


class Logs:
    """The last starts of queues, by their execution logs: nothing of this is in a store."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [_File(path) for path in paths]
        self._queues: dict[str, QueueLog] = {}
        self._seen: dict[str, Seen] = {}

    def read(self) -> None:
        """Take in what was written since the last time; lines that can't be read are left out.

        Raises:
            InvalidOption: a log can't be read, for another reason than that it isn't there yet.
        """
        found: dict[str, QueueLog] = {}
        for file in self._files:
            try:
                lines = file.lines()
            except OSError as error:
                raise InvalidOption(f"the log {file.path} can't be read: {error.strerror}") from error
            for line in lines:
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    for name in add(self._queues, file.path.stem, json.loads(line)):
                        found[name] = self._queues.pop(name)
                        self._queues[name] = found[name]  # the last one is at the end
        for name in [*self._queues][:-_QUEUES]:
            del self._queues[name]
            self._seen.pop(name, None)
        for name, queue in found.items():
            if name not in self._queues:
                continue
            queue.finish()
            queue.keep(_STARTS)
            self._seen[name] = _seen(queue)

    def close(self) -> None:
        """Read no more."""
        for file in self._files:
            file.close()

    def seen(self, name: str) -> Seen:
        """What the logs say of a queue."""
        return self._seen.get(name, _NOTHING)


class _File:
    """A log, from its end on; what was written before is read only in part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def lines(self) -> list[bytes]:
        """The lines that have come since the last time, also if the file was replaced meanwhile."""
        found = self._more() if self._file is not None else []
        if self._file is None or self._is_other(self._file):
            is_first = self._file is None
            self.close()
            with suppress(FileNotFoundError):
                self._file = self.path.open("rb")
                if is_first and (size := self._file.seek(0, 2)) > _BEFORE:
                    self._file.seek(size - _BEFORE)
                    self._file.readline()
                elif is_first:
                    self._file.seek(0)
                found += self._more()
        return found

    def close(self) -> None:
        """Forget the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _more(self) -> list[bytes]:
        assert self._file is not None
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return lines

    def _is_other(self, file: BinaryIO) -> bool:
        """Whether the path leads elsewhere now, or what was read is no longer there."""
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # it is being replaced
        return not (os.path.samestat(now, os.fstat(file.fileno())) and now.st_size >= file.tell())


def _seen(queue: QueueLog) -> Seen:
    facts = list[tuple[str, str]]()
    gaps, short = queue.gaps()
    counts = gap_counts((gap, 1) for gap in gaps)
    if gaps:
        judged = "not judged" if queue.promise is None else f"{short:,} shorter than promised"
        facts.append(("shortest gap", f"{min(gaps):.3g} intervals; of {len(gaps):,}, {judged}"))
    if queue.started:
        late = sorted(at - due for at, due in zip(queue.started, queue.due, strict=True))
        median, slow = (seconds(percentile(late, percent)) for percent in (50, 99))
        facts.append(("lateness", f"median {median}, 99 % {slow}"))
    facts += [("refused", f"{queue.refused:,}")] if queue.refused else []
    unused = sorted(queue.unused.items(), key=lambda each: -each[1].total())
    for shard, causes in unused[:_NAMED]:
        facts.append(("unused slots", f"{escaped(shard, 60)}: {_counted(causes)}"))
    if rest := unused[_NAMED:]:
        others = sum((causes for _, causes in rest), Counter[str]())
        facts.append(("unused slots", f"{len(rest)} others: {_counted(others)}"))
    return Seen(facts, Gaps(counts, queue.promise) if gaps else None, queue.notes)


def _counted(causes: Counter[str]) -> str:
    return ", ".join(f"{count:,} {escaped(cause, 20)}" for cause, count in causes.most_common())

"""The figures of a queue's starts: rate, gaps against the promise, lateness, unused slots, limits. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from intervalq._spec.limits import rules_of
from intervalq._watch.log import ROUNDING, QueueLog
from intervalq.cli._run.report import count_inversions
from intervalq.rules import STARTS

_MAX_BINS: Final = 400
_LEAST_BIN: Final = 0.05

NOT_HERE: Final = "not in these logs: used by others, or left empty"


@dataclass(frozen=True, slots=True)
class Bins:
    """Equal pieces of the time from the first start to the last."""

    begins: list[float]
    width: float
    possible: list[float]
    """How many starts fit into each."""
    by_shard: list[list[int]]
    late: list[list[float]]

    @property
    def starts(self) -> list[int]:
        """The starts in each."""
        return [sum(shard[at] for shard in self.by_shard) for at in range(len(self.begins))]


@dataclass(frozen=True, slots=True)
class Window:
    """A limit of starts in any window."""

    limit: str
    most: int
    seconds: float
    taken: list[int]
    """By start: how many starts there were in the window that ends with it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one queue. Times are in seconds; None: there were too few starts, or no interval."""

    interval: float | None
    """The last one."""
    promise: float | None
    """The shortest gap that is promised, in intervals; None: none is, as with a burst."""
    rate: float | None
    possible: float
    """How many starts were possible from the first to the last."""
    gaps: list[float]
    """In intervals, in the order of time."""
    smallest: float | None
    short: int
    """Gaps that are shorter than promised."""
    late: list[float]
    """In ascending order."""
    inversions: int
    shards: dict[str, int]
    unused: Counter[str]
    """Slots by cause."""
    windows: list[Window]
    bins: Bins


def figures(queue: QueueLog) -> Figures:
    """The figures of a queue, which has starts."""
    times = list(queue.started)
    span = times[-1] - times[0]
    last = queue.paces[-1]
    gaps, short = queue.gaps()
    counts = Counter(queue.by)
    missing = max(queue.tickets) - min(queue.tickets) + 1 - len(set(queue.tickets))
    unused = sum(queue.unused.values(), Counter())
    # A slot that was given up got another ticket, and its own is missing, too.
    if left := max(0, missing - unused.total()):
        unused[NOT_HERE] = left
    bins = _bins(queue)
    return Figures(
        interval=last.interval,
        promise=queue.promise,
        rate=(len(times) - 1) / span if span > 0 else None,
        possible=sum(bins.possible),
        gaps=gaps,
        smallest=min((later - at for at, later in pairwise(times)), default=None),
        short=short,
        late=sorted(at - due for at, due in zip(times, queue.due, strict=True)),
        inversions=count_inversions(list(queue.tickets)),
        shards={queue.shards[place]: count for place, count in sorted(counts.items())},
        unused=unused,
        windows=[made for limit in last.limits if (made := _window(limit, times)) is not None],
        bins=bins,
    )


def _bins(queue: QueueLog) -> Bins:
    first, end = queue.started[0], queue.started[-1]
    width = max(_LEAST_BIN, (end - first) / _MAX_BINS, min(1.0, (end - first) / 40))
    count = int((end - first) / width) + 1
    begins = [first + at * width for at in range(count)]
    by_shard = [[0] * count for _ in queue.shards]
    late: list[list[float]] = [[] for _ in begins]
    for at, due, shard in zip(queue.started, queue.due, queue.by, strict=True):
        place = min(count - 1, int((at - first) / width))
        by_shard[shard][place] += 1
        late[place].append(at - due)
    possible = []
    for begin in begins:
        pace = queue.pace(begin + width / 2)
        if pace is None or not pace.interval:
            possible.append(0.0)
        else:  # the last start is a slot, too
            possible.append(
                width / pace.interval if end - begin > width else (end - begin) / pace.interval + 1
            )
    for values in late:
        values.sort()
    return Bins(begins, width, possible, by_shard, late)


def _window(text: str, times: list[float]) -> Window | None:
    """How full a limit of starts was; None: it counts other units, or has fixed windows."""
    [limit] = rules_of([text])
    if limit.unit != STARTS or limit.edge is not None:
        return None
    length = limit.window / 1e6
    taken = [at + 1 - bisect_left(times, time - length + ROUNDING) for at, time in enumerate(times)]
    return Window(text, limit.most, length, taken)

"""The slots of one shard: tickets it has not asked about, slots it may use, and what it gives back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from intervalq.rules import Slot


class Run:
    """Slots that were told to go together: tickets in a row, one step apart; used from the first on."""

    __slots__ = (
        "after",
        "at_once",
        "before",
        "count",
        "end",
        "held",
        "known",
        "last",
        "likely",
        "step",
        "steps",
    )

    def __init__(
        self,
        first: Slot,
        *,
        held: int,
        steps: int,
        count: int = 1,
        step: int = 0,
        at_once: bool = False,
        likely: bool = False,
    ) -> None:
        self.count = count
        """How many of them are left."""
        self.end = first.ticket + count
        """The ticket after the last one."""
        self.held = held
        """How far the queue's clock was behind the store's when they were told."""
        self.last = first.due + held + (count - 1) * step
        """The last slot on the store's clock. A hold that begins later doesn't move it."""
        self.step = step
        self.steps = steps
        """How many steps of the store's clock were seen when they were told."""
        self.at_once = at_once
        """They were told to go as soon as their tickets were taken: the notice that was given was all."""
        self.likely = likely
        """Some were taken for jobs that were likely to come: nothing is wrong if they don't."""
        self.known = -1
        """Of which of the store's answers, counted, the bounds are."""
        self.after = self.before = 0
        """A slot may be used from `after` to `before` after its instant: it has surely come, and is surely
        not past its tolerance. Added to an instant on the store's clock, they give one on one's own."""

    @property
    def instant(self) -> int:
        """The first slot that is left, on the store's clock, in microseconds."""
        return self.last - (self.count - 1) * self.step

    @property
    def opens(self) -> int:
        """When the first slot has surely come, on the process's own clock."""
        return self.instant + self.after

    @property
    def closes(self) -> int:
        """Until when the first slot is surely not past its tolerance."""
        return self.instant + self.before

    def all_open(self, at: int) -> bool:
        """Whether the last slot has surely come, and the first is surely not past."""
        return self.last + self.after <= at <= self.closes

    def __iter__(self) -> Iterator[Slot]:
        for ahead in range(self.count, 0, -1):
            yield Go(self, ahead).slot


class Go:
    """One slot out of a run, for the job that begins in it."""

    __slots__ = ("ahead", "run")

    def __init__(self, run: Run, ahead: int) -> None:
        self.run = run
        self.ahead = ahead
        """Its place in the run, counted from the end."""

    @property
    def ticket(self) -> int:
        """Its ticket."""
        return self.run.end - self.ahead

    @property
    def instant(self) -> int:
        """The slot on the store's clock, in microseconds."""
        return self.run.last - (self.ahead - 1) * self.run.step

    @property
    def opens(self) -> int:
        """When it has surely come, on the process's own clock."""
        return self.instant + self.run.after

    @property
    def closes(self) -> int:
        """Until when it is surely not past its tolerance."""
        return self.instant + self.run.before

    @property
    def slot(self) -> Slot:
        """The ticket and its instant on the queue's clock."""
        return Slot(self.ticket, self.instant - self.run.held)

    @property
    def due(self) -> float:
        """The slot on the store's clock, in seconds since 1970."""
        return self.instant / 1e6


class Slots:
    """See the module. All in slot order, and those told to go before the others."""

    def __init__(self) -> None:
        self.tickets: deque[Slot] = deque()
        self.granted: deque[Run] = deque()
        self.unused: list[Slot] = []
        """To be given back with the next question."""

    def __bool__(self) -> bool:
        return bool(self.granted or self.tickets or self.unused)

    @property
    def told(self) -> int:
        """How many slots were told to go."""
        return sum([run.count for run in self.granted])

    def use(self) -> Go:
        """Take the first slot that was told to go."""
        run = self.granted[0]
        go = Go(run, run.count)
        run.count -= 1
        if not run.count:
            self.granted.popleft()
        return go

    def coming(self) -> Iterator[Slot]:
        """All that jobs may still begin in."""
        for run in self.granted:
            yield from run
        yield from self.tickets

    def answered(self, asked: set[Slot], told: set[Slot], missed: set[int], void: int) -> set[Slot]:
        """Sort out the tickets that were asked about, and those up to `void`, which are dead.

        Returns those of `told` that are still waited for.
        """
        here: set[Slot] = set()
        left: list[Slot] = []
        while self.tickets and (self.tickets[0] in asked or self.tickets[0].ticket <= void):
            slot = self.tickets.popleft()
            if slot in told:
                here.add(slot)
            elif slot.ticket > void and slot.ticket not in missed:
                left.append(slot)
        self.tickets.extendleft(reversed(left))
        return here

    def pass_by(self) -> None:
        """The next ticket will not be used."""
        self.unused.append(self.tickets.popleft())

    def pass_all(self) -> int:
        """No ticket will be used; how many there were."""
        self.unused += self.tickets
        passed = len(self.tickets)
        self.tickets.clear()
        return passed

    def given_back(self, last: int) -> tuple[Slot, ...]:
        """What goes back with a question; it is the question's now.

        Args:
            last: the highest ticket that is known of. Only the very last ones become free again: what was
                issued before another's ticket stays empty, and need not be told.
        """
        back: list[Slot] = []
        for slot in sorted({*self.unused}, reverse=True):
            if slot.ticket < last:
                break
            back.append(slot)
            last = slot.ticket - 1
        self.unused = []
        return tuple(reversed(back))

    def give_all_back(self, last: int) -> tuple[Slot, ...]:
        """Nobody waits any more: everything goes back."""
        self.unused += self.coming()
        back = self.given_back(last)
        self.forget()
        return back

    def forget(self) -> None:
        """The record that they are of is gone."""
        self.tickets.clear()
        self.granted.clear()
        self.unused.clear()

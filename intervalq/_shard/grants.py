"""The slots of one shard: ungranted tickets, unused grants, and slots to give back."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Container, Iterator

from intervalq._keys.limits import NOT_COUNTED, Counting
from intervalq.rules import FOREVER, Slot


class GrantRange:
    """Consecutive slots that were granted together, one step apart; they are used from the first one on.

    Nobody else has a slot among them. So if a job begins late, its slot and the following ones move by its
    lateness, up to the end of the last one. That needs no request; only slots that don't fit any more are
    granted again.
    """

    __slots__ = (
        "after",
        "all_from",
        "all_until",
        "at_once",
        "base",
        "before",
        "cost",
        "count",
        "counts",
        "end",
        "granted_at",
        "held_total",
        "last",
        "latest",
        "moves",
        "readings",
        "record",
        "shift",
        "speculative",
        "step",
        "steps",
        "units",
    )

    def __init__(
        self,
        first: Slot,
        *,
        held_total: int,
        steps: int,
        counts: Counting = NOT_COUNTED,
        count: int = 1,
        step: int = 0,
        at_once: bool = False,
        granted_at: int = 0,
        latest: int = FOREVER,
        speculative: bool = False,
    ) -> None:
        self.count = count
        """How many of them are left."""
        self.end = first.ticket + count
        """The ticket after the last one."""
        self.cost = first.cost
        """How many slots each of the tickets owns."""
        self.units = first.units
        """What each of them takes of the queue's limits."""
        self.held_total = held_total
        """How far the queue's clock was behind the store's at the time of the grant."""
        self.counts = counts
        """By which clocks limits count."""
        self.last = first.due + held_total + (count - 1) * step
        """The last slot, on the store's clock. Later holds don't move it."""
        self.step = step
        self.base = self.last - (self.end - 1) * step
        """The slot that ticket 0 would have."""
        self.steps = steps
        """How many steps of the store's clock had been detected at the time of the grant."""
        self.at_once = first.ticket if at_once else 0
        """The ticket that may be used before its slot comes: see `Answer.at_once`; 0: none."""
        self.granted_at = granted_at
        """With `at_once`: the time of the grant, on the store's clock."""
        self.latest = latest
        """How late after its slot a job may begin, by the settings at the time of the grant: later slots may
        have been granted to others by these settings, even if they have been changed since."""
        self.record = 0
        """Which record they belong to, see `Grants.record`."""
        self.speculative = speculative
        """Whether some were taken for jobs that were only likely to come: unused ones aren't failures."""
        self.readings = -1
        """How many readings of the store's clock `after` and `before` were computed from."""
        self.after = self.before = 0
        """A slot may be used from `after` to `before` after its instant. Added to an instant on the store's
        clock, they give instants on the process's own: when the slot has come, and when it may be over."""
        self.all_from, self.all_until = FOREVER, -FOREVER
        """Between these, any slot may be used without checking its bounds; never if slots may move."""
        self.moves = False
        """Whether the slots may move, up to the end of the last one."""
        self.shift = 0
        """By how much the remaining slots have moved."""

    @property
    def instant(self) -> int:
        """The first remaining slot, on the store's clock, in microseconds."""
        return self.last - (self.count - 1) * self.step

    @property
    def opens(self) -> int:
        """From when the first slot may be used, on the process's own clock."""
        if self.end - self.count == self.at_once:
            return -FOREVER
        return self.instant + self.after + self.shift

    @property
    def closes(self) -> int:
        """Until when a job may begin in the first slot, on the process's own clock."""
        return (self.last if self.moves else self.instant) + self.before

    def all_open(self, at: int) -> bool:
        """Whether all of the slots may be used at this instant."""
        opens = self.opens if self.count == 1 else self.last + self.after + self.shift
        return opens <= at <= self.instant + self.before

    def follows(self, other: GrantRange) -> bool:
        """Whether these slots directly follow those of another range."""
        return (
            self.end - self.count == other.end
            and self.instant == other.last + other.step
            and (self.step, self.steps, self.held_total) == (other.step, other.steps, other.held_total)
            and self.counts == other.counts
            and self.latest == other.latest
            and self.cost == other.cost == 1
            and self.units == other.units
            and self.speculative == other.speculative
            and not self.at_once
        )

    def extend(self, other: GrantRange) -> None:
        """Add the slots of a range that directly follows."""
        self.count += other.count
        self.end, self.last = other.end, other.last
        self.readings = -1

    def __iter__(self) -> Iterator[Slot]:
        for ahead in range(self.count, 0, -1):
            ticket, instant = self.end - ahead, self.last - (ahead - 1) * self.step
            yield Slot(ticket, instant - self.held_total, self.cost, self.units)


class Grant:
    """One slot of a range, for the job that begins in it."""

    __slots__ = ("awaited", "clear", "range", "shift", "ticket")

    def __init__(self, granted: GrantRange, clear: int = -FOREVER) -> None:
        self.range = granted
        self.clear = clear
        """Before this time, on the process's own clock, it would be too close to the previous start."""
        self.ticket = granted.end - granted.count
        self.shift = granted.shift
        """By how much it moved because earlier jobs began late."""
        self.awaited = False
        """Whether its thread ran before it came, and slept until then."""

    @property
    def at_once(self) -> bool:
        """Whether it may be used before it comes."""
        return self.ticket == self.range.at_once

    @property
    def instant(self) -> int:
        """The slot on the store's clock, in microseconds."""
        return self.range.base + self.ticket * self.range.step

    @property
    def opens(self) -> int:
        """From when it may be used, on the process's own clock."""
        return max(self.clear, -FOREVER if self.at_once else self.instant + self.range.after + self.shift)

    @property
    def closes(self) -> int:
        """Until when it may be used, on the process's own clock."""
        return min(self.instant + self.shift, self.range.last) + self.range.before

    @property
    def slot(self) -> Slot:
        """The ticket and its instant on the queue's clock."""
        return Slot(self.ticket, self.instant - self.range.held_total, self.range.cost, self.range.units)

    @property
    def due(self) -> float:
        """The slot on the store's clock, in seconds since 1970; if used at once, the time of the grant.

        It is later if it would otherwise be too close to the previous start.
        """
        instant = self.instant + self.shift
        if self.at_once and not self.shift:
            instant = min(instant, self.range.granted_at)
        return max(instant, self.clear - self.range.after) / 1e6


class Grants:
    """Tickets and grants in slot order; granted slots come before ungranted ones."""

    def __init__(self) -> None:
        self.tickets: deque[Slot] = deque()
        self.granted: deque[GrantRange] = deque()
        self.unused: list[Slot] = []
        """Slots to give back with the next request."""
        self.empty: list[Slot] = []
        """Slots that can't be given back, and that nobody will use: limits still count them."""
        self.doubtful: set[Slot] = set()
        """Slots that the store may have taken back: an answer about them was lost."""
        self.through = 0
        """The last ticket that was granted to this shard."""
        self.covered = 0
        """The last ticket whose slot nobody may use any more: an earlier job began late, too close to it."""
        self.record = 0
        """How many records were lost. Slots of an earlier record are void."""
        self._shift = self._shift_end = 0

    def __bool__(self) -> bool:
        return bool(self.granted or self.tickets or self.unused)

    def grant(self, granted: GrantRange) -> None:
        """Add granted slots; if they were granted again, they may come before other granted ones."""
        granted.record = self.record
        later = []
        while self.granted and self.granted[-1].end > granted.end:
            later.append(self.granted.pop())
        if self.granted and granted.follows(self.granted[-1]):
            self.granted[-1].extend(granted)
        else:
            self.granted.append(granted)
        self.granted.extend(reversed(later))
        self.through = self.granted[-1].end - 1

    @property
    def granted_count(self) -> int:
        """How many slots are granted and not yet used."""
        return sum([each.count for each in self.granted])

    def use(self, clear: int = -FOREVER) -> Grant:
        """Take the first granted slot; for `clear` see `Grant`."""
        first = self.granted[0]
        grant = Grant(first, clear)
        first.count -= 1
        if not first.count:
            self.granted.popleft()
        return grant

    def coming(self) -> Iterator[Slot]:
        """All slots in which jobs may still begin."""
        for each in self.granted:
            yield from each
        yield from self.tickets

    def last(self) -> Slot:
        """The last slot in which a job may still begin; there must be one."""
        return self.tickets[-1] if self.tickets else [*self.granted[-1]][-1]

    def in_row(self, within: float, through: int) -> list[Slot]:
        """The first ticket and those directly after it, at most `within` later or up to ticket `through`."""
        row: list[Slot] = []
        for slot in self.tickets:
            if row and slot.ticket != row[-1].ticket + 1:
                break
            if row and slot.due - row[0].due > within and slot.ticket > through:
                break
            row.append(slot)
        return row

    def move(self, at: int) -> bool:
        """Move the first granted slot if a job begins in it late. Returns whether it was late."""
        first = self.granted[0]
        late = at - first.instant - first.before
        if late > 0:
            self.covered = first.end - first.count - (-late // first.step)
        if late <= first.shift:
            return False
        first.shift = late
        return True

    def row_end(self) -> int:
        """The ticket after the first consecutive slots, granted or not; 0: there are none.

        Once the first one is over, it can be granted late only if nobody was granted this or a later ticket.
        """
        end = 0
        for first, after in self._rows():
            if end and first != end:
                break
            end = after
        return end

    def _rows(self) -> Iterator[tuple[int, int]]:
        for each in self.granted:
            yield each.end - each.count, each.end
        for slot in self.tickets:
            yield slot.ticket, slot.ticket + 1

    def ask_again(self) -> None:
        """Turn all grants back into tickets, because the first one is over."""
        again = [slot for each in self.granted for slot in each]
        while again and self.tickets and self.tickets[0].due < again[-1].due:
            insort(again, self.tickets.popleft(), key=lambda each: each.due)
        first = self.granted[0] if self.granted else None
        self._shift, self._shift_end = (first.shift, first.end) if first is not None else (0, 0)
        self.granted.clear()
        self.tickets.extendleft(reversed(again))

    def shift_of(self, slot: Slot) -> int:
        """By how much an ungranted slot had moved when it was granted before."""
        return self._shift if slot.ticket < self._shift_end else 0

    def take_back(self, slot: Slot, current: int) -> bool:
        """Take back a slot in which its job could not begin, to be granted again with all slots behind it.

        Returns whether it can be: not if `current` shows that somebody else was granted a later slot.
        """
        end = slot.ticket + 1
        for first, after in sorted(self._rows()):
            if first == end:
                end = after
        if current >= end:
            return False
        self.ask_again()
        # That of a thread which was handed its slot before may be back already.
        self.tickets.insert(bisect_left(self.tickets, slot.due, key=lambda each: each.due), slot)
        return True

    def answered(
        self,
        asked: set[Slot],
        granted: set[Slot],
        missed: set[int],
        revoked: int,
        leased: Container[int] = (),
    ) -> set[Slot]:
        """Remove the tickets that were answered, and those up to `revoked`, which are no longer valid.

        `leased` tickets stay: they were granted, were over before their jobs began, and are to be granted
        again.

        Returns those of `granted` that are still wanted.
        """
        here: set[Slot] = set()
        left: list[Slot] = []
        last = max([revoked, *(slot.ticket for slot in asked)])
        while self.tickets and self.tickets[0].ticket <= last:  # some may have been taken back meanwhile
            slot = self.tickets.popleft()
            if slot in granted:
                here.add(slot)
            elif (slot.ticket > revoked or slot.ticket in leased) and slot.ticket not in missed:
                left.append(slot)
        self.tickets.extendleft(reversed(left))
        return here

    def pass_by(self) -> None:
        """Drop the next ticket, which will not be used."""
        self.unused.append(self.tickets.popleft())

    def pass_all(self) -> int:
        """Drop all tickets; returns how many there were."""
        self.unused += self.tickets
        passed = len(self.tickets)
        self.tickets.clear()
        return passed

    def given_back(self, last: int) -> tuple[Slot, ...]:
        """Take the slots to give back with a request: those of the last tickets; earlier ones stay empty."""
        back: list[Slot] = []
        for slot in sorted({*self.unused}, reverse=True):
            if slot.ticket < last or slot.ticket <= self.covered:
                break
            back.append(slot)
            last = slot.ticket - 1
        self.empty += sorted({*self.unused} - {*back} - self.doubtful)
        self.unused = []
        self.doubtful &= {*back, *self.coming()}
        return tuple(reversed(back))

    def give_all_back(self, last: int) -> tuple[Slot, ...]:
        """Take all slots to give them back, because nobody waits any more."""
        self.unused += self.coming()
        back = self.given_back(last)
        self.forget()
        return back

    def lost(self) -> None:
        """Forget all slots, because their record is gone."""
        self.record += 1
        self.forget()

    def forget(self) -> None:
        """Forget all slots; none of them will be used."""
        self.tickets.clear()
        self.granted.clear()
        self.unused, self.empty, self.doubtful = [], [], set()
        self.through = self.covered = self._shift = self._shift_end = 0

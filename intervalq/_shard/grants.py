"""The slots of one shard: tickets that are not granted yet, grants to use, and what it gives back."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator

from intervalq.rules import FOREVER, Slot


class GrantRange:
    """Slots in a row that were granted together, one step apart; they are used from the first on.

    Nobody else has a slot among them. So where a job begins late, its slot and those behind it move by as
    much, up to the end of the last one: that needs no question, and only what doesn't fit any more is granted
    again.
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
    )

    def __init__(
        self,
        first: Slot,
        *,
        held_total: int,
        steps: int,
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
        self.held_total = held_total
        """How far the queue's clock was behind the store's when they were granted."""
        self.last = first.due + held_total + (count - 1) * step
        """The last slot on the store's clock. A hold that begins later doesn't move it."""
        self.step = step
        self.base = self.last - (self.end - 1) * step
        """Where ticket 0 would lie."""
        self.steps = steps
        """How many steps of the store's clock had been seen when they were granted."""
        self.at_once = first.ticket if at_once else 0
        """The ticket that may be used before its slot comes: see `Answer.at_once`; 0: none."""
        self.granted_at = granted_at
        """With `at_once`: when it was granted, on the store's clock."""
        self.latest = latest
        """How late after its slot a job might begin by the settings that they were granted under: others may
        have been granted slots behind these that are near to them, whatever the settings are by now."""
        self.record = 0
        """Which record they are of: see `Grants.record`."""
        self.speculative = speculative
        """Some were taken for jobs that were likely to come: nothing is wrong if they don't."""
        self.readings = -1
        """How many readings of the store's clock `after` and `before` were computed from."""
        self.after = self.before = 0
        """A slot may be used from `after` to `before` after its instant. Added to an instant on the store's
        clock, they give one on the process's own: when the slot has come, and when it may be over."""
        self.all_from, self.all_until = FOREVER, -FOREVER
        """Between these, any of them may be used without another look at the bounds; not if they move."""
        self.moves = False
        """Whether the slots may move, up to the end of the last one."""
        self.shift = 0
        """By how much those that are left have moved."""

    @property
    def instant(self) -> int:
        """The first slot that is left, on the store's clock, in microseconds."""
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
        """Whether all of the slots may be used at that instant."""
        opens = self.opens if self.count == 1 else self.last + self.after + self.shift
        return opens <= at <= self.instant + self.before

    def follows(self, other: GrantRange) -> bool:
        """Whether these are the next slots after others that lie in a row."""
        return (
            self.end - self.count == other.end
            and self.instant == other.last + other.step
            and (self.step, self.steps, self.held_total) == (other.step, other.steps, other.held_total)
            and self.latest == other.latest
            and self.cost == other.cost == 1
            and self.speculative == other.speculative
            and not self.at_once
        )

    def extend(self, other: GrantRange) -> None:
        """Slots that follow these are granted, too."""
        self.count += other.count
        self.end, self.last = other.end, other.last
        self.readings = -1

    def __iter__(self) -> Iterator[Slot]:
        for ahead in range(self.count, 0, -1):
            ticket, instant = self.end - ahead, self.last - (ahead - 1) * self.step
            yield Slot(ticket, instant - self.held_total, self.cost)


class Grant:
    """One slot out of a range, for the job that begins in it."""

    __slots__ = ("clear", "range", "shift", "ticket")

    def __init__(self, granted: GrantRange, clear: int = -FOREVER) -> None:
        self.range = granted
        self.clear = clear
        """Before this, on the process's own clock, it would lie too near to the start before it."""
        self.ticket = granted.end - granted.count
        self.shift = granted.shift
        """By how much it moved, because jobs before it began late."""

    def become(self, other: Grant) -> None:
        """Stand for the same slot as another one: for classes of grants that are made otherwise."""
        self.range, self.ticket, self.shift, self.clear = other.range, other.ticket, other.shift, other.clear

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
        return Slot(self.ticket, self.instant - self.range.held_total, self.range.cost)

    @property
    def due(self) -> float:
        """The slot on the store's clock, in seconds since 1970; from when it was granted, if used at once.

        Later where it would lie too near to the start before it.
        """
        instant = self.instant + self.shift
        if self.at_once and not self.shift:
            instant = min(instant, self.range.granted_at)
        return max(instant, self.clear - self.range.after) / 1e6


class Grants:
    """Tickets and grants in slot order; what is granted comes before what is not."""

    def __init__(self) -> None:
        self.tickets: deque[Slot] = deque()
        self.granted: deque[GrantRange] = deque()
        self.unused: list[Slot] = []
        """To be given back with the next question."""
        self.through = 0
        """The last ticket that was granted to this shard."""
        self.covered = 0
        """The last ticket whose slot nobody may have any more: a job began so late that it lies too near."""
        self.record = 0
        """How many records were lost: slots of an earlier one are nobody's."""

    def __bool__(self) -> bool:
        return bool(self.granted or self.tickets or self.unused)

    def grant(self, granted: GrantRange) -> None:
        """Slots were granted; perhaps again, so that they lie before others that are."""
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
        """How many slots are granted and not used yet."""
        return sum([each.count for each in self.granted])

    def use(self, clear: int = -FOREVER) -> Grant:
        """Take the first slot that is granted; `clear` is the grant's."""
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

    def in_row(self, within: float, through: int) -> list[Slot]:
        """The first ticket and those right behind it, at most `within` after it or up to ticket `through`."""
        row: list[Slot] = []
        for slot in self.tickets:
            if row and slot.ticket != row[-1].ticket + 1:
                break
            if row and slot.due - row[0].due > within and slot.ticket > through:
                break
            row.append(slot)
        return row

    def move(self, at: int) -> bool:
        """A job begins in the first slot that is granted: if that is late, move it. Returns whether it is."""
        first = self.granted[0]
        late = at - first.instant - first.before
        if late <= first.shift:
            return False
        first.shift = late
        self.covered = first.end - first.count - (-late // first.step)
        return True

    def row_end(self) -> int:
        """The ticket after the first slots in a row, granted or not; 0: there are none.

        Once the first one is over, it may be granted late only if nobody was granted this or a later ticket.
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

    def ask_again(self) -> int:
        """The first grant is over: it and all behind it have to be granted again. How many they are."""
        again = [slot for each in self.granted for slot in each]
        self.granted.clear()
        self.tickets.extendleft(reversed(again))
        return len(again)

    def take_back(self, slot: Slot, current: int) -> bool:
        """A job could not begin in a slot that it took: it and all behind it have to be granted again.

        Returns whether they may be: not if somebody else had been granted a later one, as `current` says.
        """
        following = next(self.coming(), None)
        end = slot.ticket + 1
        if following is not None and following.ticket == end:
            end = self.row_end()
        if current >= end:
            return False
        self.ask_again()
        self.tickets.appendleft(slot)
        return True

    def answered(
        self,
        asked: set[Slot],
        granted: set[Slot],
        missed: set[int],
        revoked: int,
        leased: Container[int] = (),
    ) -> set[Slot]:
        """Sort out the tickets that were asked about, and those up to `revoked`, which are dead.

        Not what is `leased`: it was granted, was over before its job began, and is to be granted again.

        Returns those of `granted` that are still waited for.
        """
        here: set[Slot] = set()
        left: list[Slot] = []
        while self.tickets and (self.tickets[0] in asked or self.tickets[0].ticket <= revoked):
            slot = self.tickets.popleft()
            if slot in granted:
                here.add(slot)
            elif (slot.ticket > revoked or slot.ticket in leased) and slot.ticket not in missed:
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
            if slot.ticket < last or slot.ticket <= self.covered:
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

    def lost(self) -> None:
        """The record that they are of is gone."""
        self.record += 1
        self.forget()

    def forget(self) -> None:
        """None of them will be used."""
        self.tickets.clear()
        self.granted.clear()
        self.unused.clear()
        self.through = self.covered = 0

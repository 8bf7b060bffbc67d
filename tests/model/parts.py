"""The parts of a state: flat tuples, so that two states that will go on alike are one.

Instants on the store's clock are counted from what it reads now, those on the queue's clock (`due`) from what
that reads now; so the same situation a while later is the same state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class Record(NamedTuple):
    """The record in the store."""

    gen: int
    interval: int
    ticket: int
    due: int
    current: int
    at: int
    revoked_through: int
    held: int
    since: int | None
    until: int | None
    seen: int
    running: tuple[tuple[int, int], ...]


class Slot(NamedTuple):
    """A ticket and its slot."""

    ticket: int
    due: int
    old: int = 0
    """Whether it was issued before the store lost writes."""


class Grant(NamedTuple):
    """A granted slot."""

    ticket: int
    due: int
    old: int
    """Excused: issued before the store lost writes, or granted before a step unknown to its shard."""
    instant: int
    lease: int
    """How long the lease that came with it lasts."""
    interval: int
    """The queue's interval when the slot was issued."""
    at_once: bool = False
    """Whether it was granted late, and may be used before it comes."""

    @property
    def slot(self) -> Slot:
        """Slots to give back."""
        return Slot(self.ticket, self.due, self.old)


class Question(NamedTuple):
    """A shard's question about the record: see `intervalq.rules.Advance`, and `Finish` if jobs are named."""

    gen: int
    slots: tuple[Slot, ...] = ()
    release: tuple[Slot, ...] = ()
    take: int = 0
    notice: int = 0
    reach: int = 0
    mark: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    late: int = 0
    """0: it may not be granted late. 1: it may. 2: it could, but there was a late grant since it was sent."""


class Reply(NamedTuple):
    """An answer in transit, as its shard will understand it."""

    gen: int
    mark: tuple[int, ...]
    granted: tuple[Grant, ...]
    missed: tuple[int, ...]
    begun: tuple[Grant, ...]
    taken: tuple[Slot, ...]
    release: tuple[Slot, ...]
    """What the question gave back, and would give back again if the answer got lost."""
    low: int
    high: int
    """How well the answer bounds the store's clock: this much less, and this much more than it reads."""
    stale: bool = False
    """Whether a slot was granted late since."""


class Shard(NamedTuple):
    """A shard. It always has waiting jobs."""

    gen: int = 0
    """The record that it knows; 0: none yet. -1: the shard crashed."""
    tickets: tuple[Slot, ...] = ()
    granted: tuple[Grant, ...] = ()
    unused: tuple[Slot, ...] = ()
    reply: tuple[Reply, ...] = ()
    """The answer that it waits for, if it does."""
    mark: tuple[int, ...] = ()
    running: tuple[tuple[int, int], ...] = ()
    """Tickets of running jobs, and how long the store was told to keep their leases."""
    ended: tuple[int, ...] = ()
    low: int = -99
    high: int = 99
    stale: bool = False
    """Whether there was a late grant that it hasn't heard of."""


DEAD: Final = Shard(gen=-1)


class Court(NamedTuple):
    """What the judges remember, in true time, and which faults are still to come."""

    early: tuple[int, ...]
    """For each interval, the time until a start is no longer early if nothing may be late or saved up."""
    used: int = 0
    """The tickets of the record that have begun, a bit each."""
    excuses: int = 0
    """The number of starts that may still be early, since the store lost writes or its clock was stepped."""
    hold: int = 0
    """How long the queue will still be paused."""
    made: int = 0
    """How many records were created."""
    crashes: int = 0
    copies: int = 0
    holds: int = 0
    reclaims: int = 0
    changes: int = 0
    steps: int = 0
    failovers: int = 0
    drops: int = 0


class World(NamedTuple):
    """A state."""

    record: Record | None
    copy: tuple[Record, ...]
    """What the store will fall back to, if a replica has fallen behind."""
    shards: tuple[Shard, ...]
    requests: tuple[Question, ...]
    """Answers that their shards no longer wait for, and that arrive all the same."""
    court: Court


class Step(NamedTuple):
    """A transition."""

    who: int
    """The index of the shard; -1: none."""
    what: str
    detail: tuple[object, ...]
    world: World
    broken: str = ""
    """The promise that it breaks; empty: none."""
    trouble: bool = False
    """Whether it is a fault, which waiting processes may not rely on."""
    begins: bool = False
    """Whether a job begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bugs:
    """The bugs of the abstract shards; see `model.planted`."""

    no_last_check: bool = False
    too_tolerant: bool = False
    perhaps_come: bool = False
    perhaps_not_past: bool = False
    lost_is_granted: bool = False
    used_given_back: bool = False
    slots_kept: bool = False
    step_survived: bool = False

    @property
    def late(self) -> bool:
        """Whether they may begin a job in a slot that is past."""
        return self.no_last_check or self.too_tolerant or self.perhaps_not_past


NO_BUGS: Final = Bugs()

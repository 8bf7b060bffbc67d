"""What one search covers: how many shards and tickets, which settings, and which faults how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from intervalq.rules import FOREVER


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # it is a key of caches, hashed by identity
class Scope:
    """A bounded world. All times are ticks; time itself and the number of lost answers are unbounded."""

    name: str
    about: str
    """The bound in words."""
    shards: int = 3
    tickets: int = 3
    """The most tickets that one record issues."""
    records: int = 1
    """The most records that are created, one after the other."""
    ahead: int = 1
    """The most slots that one shard has at a time."""
    interval: int = 3
    tolerance: int = 1
    burst: int = 1
    max_running: int = 0
    lease: int = 2
    ephemeral: bool = False
    """A queue of a key; an idle record is forgotten as soon as it may be."""
    reaches: tuple[int, ...] = (0, 2)
    notices: tuple[int, ...] = (0,)
    late: bool = False
    """Slots may be granted late."""
    blur: int = 0
    """How badly a shard may know the store's clock."""
    leaving: bool = False
    """Shards may give back all slots, at any time, and return."""
    passing: bool = False
    """Shards may give a ticket up before they ask about it."""
    looking: bool = False
    """Shards may ask for nothing, to learn the record."""
    crashes: int = 0
    copies: int = 0
    """How many requests are in flight when their shard believes them lost (`crashes`), or arrive twice."""
    holds: int = 0
    lengths: tuple[int, ...] = (2, FOREVER)
    reclaims: int = 0
    intervals: tuple[int, ...] = ()
    """The intervals that `configure` may set, and how often:"""
    changes: int = 0
    strides: tuple[int, ...] = ()
    """The steps of the store's clock, and how often:"""
    steps: int = 0
    failovers: int = 0
    drops: int = 0

    @property
    def credit(self) -> int:
        """How far behind the queue's clock a slot may lie."""
        return (self.burst - 1) * self.interval

    @property
    def window(self) -> int:
        """How long after its slot a job may begin."""
        return self.credit + self.tolerance

    @property
    def marks(self) -> bool:
        """Whether a record can have lost tickets that a shard knows of."""
        return self.failovers > 0

    @property
    def rates(self) -> tuple[int, ...]:
        """All intervals that the queue may run with."""
        return tuple(sorted({self.interval, *self.intervals}))

    @property
    def oldest(self) -> int:
        """All slots that lie at least this far behind the queue's clock are equivalent."""
        return (self.burst + 1) * max(self.rates) + self.tolerance + 1

    @property
    def longest(self) -> int:
        """All instants that lie at least this far behind the store's clock are equivalent."""
        return self.window + self.blur + max((abs(stride) for stride in self.strides), default=0) + 1


def _scopes(*scopes: Scope) -> dict[str, Scope]:
    return {scope.name: scope for scope in scopes}


SCOPES: Final[dict[str, Scope]] = _scopes(
    Scope(
        name="calm",
        about="3 shards, 3 tickets, one at a time each; answers are late or lost",
    ),
    Scope(
        name="ahead",
        about="2 shards, 3 tickets, two at a time each; tickets given up, shards that leave and come again",
        shards=2,
        ahead=2,
        leaving=True,
        passing=True,
        reaches=(2,),
    ),
    Scope(
        name="burst",
        about="3 shards, 4 tickets; 2 may begin at once",
        tickets=4,
        burst=2,
        interval=2,
    ),
    Scope(
        name="crashes",
        about="3 shards, 3 tickets; 1 shard crashes, tickets are reclaimed once",
        crashes=1,
        reclaims=1,
        reaches=(2,),
    ),
    Scope(
        name="copies",
        about="2 shards, 3 tickets; 1 request that arrives late or twice",
        shards=2,
        reaches=(2,),
        copies=1,
    ),
    Scope(
        name="holds",
        about="2 shards, 3 tickets; 1 pause, with or without an end",
        shards=2,
        reaches=(0, 3),
        holds=1,
    ),
    Scope(
        name="limit",
        about="2 shards, 2 tickets; 1 job may run, leases of 2 ticks, 1 crash",
        shards=2,
        tickets=2,
        max_running=1,
        reaches=(2,),
        interval=2,
        crashes=1,
    ),
    Scope(
        name="rates",
        about="2 shards, 3 tickets; the interval is changed to 4 ticks or back to 2, twice",
        shards=2,
        intervals=(2, 4),
        interval=2,
        changes=2,
    ),
    Scope(
        name="steps",
        about="2 shards, 3 tickets; the store's clock steps by 3 ticks either way, once",
        shards=2,
        reaches=(2,),
        strides=(3, -3),
        steps=1,
    ),
    Scope(
        name="blurred",
        about="2 shards, 3 tickets; shards know the store's clock to a tick",
        shards=2,
        blur=1,
    ),
    Scope(
        name="failover",
        about="2 shards, 2 tickets; the store fails over once to any older state",
        shards=2,
        tickets=2,
        failovers=1,
    ),
    Scope(
        name="dropped",
        about="2 shards, 2 tickets of each record; the record is lost once",
        shards=2,
        tickets=2,
        records=2,
        drops=1,
        reaches=(2,),
    ),
    Scope(
        name="late",
        about="2 shards, 3 tickets; slots are granted late",
        shards=2,
        reaches=(2,),
        notices=(1,),
        late=True,
    ),
    Scope(
        name="late-copies",
        about="2 shards, 2 tickets; slots are granted late, 1 request that arrives late or twice",
        shards=2,
        tickets=2,
        reaches=(2,),
        notices=(1,),
        copies=1,
        late=True,
    ),
    Scope(
        name="keyed",
        about="3 shards, 2 tickets of each record; idle records are forgotten, 2 are made",
        tickets=2,
        records=2,
        interval=2,
        ephemeral=True,
    ),
)
"""The scopes that every run of the test suite covers."""

"""What `queue.inspect()` tells: the record as people read it, and the live figures of one handle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from intervalq.rules import FOREVER, State

if TYPE_CHECKING:
    from intervalq._shard.shard import Shard
    from intervalq.rules import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue at one instant. Times are seconds, instants seconds since 1970 on the store's clock."""

    name: str
    interval: float
    burst: int
    max_running: int | None
    """None: no limit."""
    ticket: int
    """The last ticket issued."""
    current: int
    """The highest ticket that was told to go."""
    outstanding: int
    """Tickets issued and not told to go: jobs that wait, and tickets of shards that died."""
    running: int | None
    """With `max_running`: how many jobs run over all shards; None: not counted."""
    held: bool
    """Paused, cooling down, or at the limit of running jobs."""
    held_until: float | None
    """When a cool-down ends; None: not held, or until somebody resumes or a running job ends."""
    next_slot: float | None
    """When a job that is added now would begin; None: the queue is held."""
    now: float
    """The store's clock."""
    generation: str
    """Changes when the record is lost or dropped, and made anew."""

    waiting: int
    """This handle: jobs that wait for a slot."""
    begun: int
    """This handle: jobs that began."""
    given_up: int
    """This handle: slots that were missed or given up, each for a new one."""
    calls: int
    """This handle: commands sent to the store."""
    round_trip: float | None
    """This handle: the slow side of the recent round trips to the store; None: not known yet."""
    spacing: float
    """This handle: how far apart starts are at least: the interval less the tolerance that can be held."""
    regressions: int
    """This handle: how many times the store was seen to have lost writes."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def outstanding(state: State) -> int:
    """How many tickets were issued, not told to go, and not given back."""
    slots = -((state.at - state.due) // state.settings.interval)
    return max(0, min(state.ticket - max(state.current, state.void), slots))


def inspected(shard: Shard, answer: Answer) -> QueueState:
    """The state that an answer shows to a shard; the answer must have one."""
    state = answer.state
    assert state is not None
    settings = state.settings
    held = state.held_since is not None
    slow = shard.round_trips.slow()
    clock = state.clock(answer.now)
    next_slot = max(clock - state.credit, state.due + settings.interval) + state.held
    return QueueState(
        name=shard.queue,
        interval=settings.interval / 1e6,
        burst=settings.burst,
        max_running=settings.max_running or None,
        ticket=state.ticket,
        current=state.current,
        outstanding=outstanding(state),
        running=len(state.running) if settings.max_running else None,
        held=held,
        held_until=state.held_until / 1e6 if 0 < state.held_until < FOREVER else None,
        next_slot=None if held else max(next_slot, answer.now) / 1e6,
        now=answer.now / 1e6,
        generation=state.generation,
        waiting=len(shard.line),
        begun=shard.begun,
        given_up=shard.given_up,
        calls=shard.calls,
        round_trip=None if slow is None else slow / 1e6,
        spacing=max(0, settings.interval - shard.tolerance(shard.clock.now())) / 1e6,
        regressions=shard.regressions,
    )

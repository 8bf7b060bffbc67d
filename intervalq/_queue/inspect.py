"""The result of `queue.inspect()`: the record in readable form, and the live figures of one handle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from intervalq._keys.names import shown
from intervalq._keys.shards import keyed_on
from intervalq._spec import adapt, limits, standing
from intervalq._timing.precision import PROCESS
from intervalq.rules import FOREVER, Answer, State

if TYPE_CHECKING:
    from intervalq._shard.shard import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A limit at one instant."""

    limit: str
    """For example `500/m` or `30000 tokens/m`."""
    most: int
    taken: int
    """The units that count now: of jobs that began, and of those that have tickets."""
    left: int
    """The units that are left now; 0: the limit is used up."""
    free: float
    """When there is room for one unit more, on the store's clock."""
    of_key: bool = False
    """Whether this is a limit of the key alone; otherwise, it counts the jobs of all keys of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoState:
    """A rate that finds the server's limit, at one instant. Rates are starts a second."""

    rate: float
    """The present rate."""
    floor: float
    ceiling: float
    refused: float | None
    """The rate to which it returns after the last refusal; None: nothing was refused yet."""
    refused_at: float | None
    """When the last refusal was, on the store's clock. It is later by the length of holds since then."""


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
    """The highest ticket that was granted."""
    outstanding: int
    """Tickets that were issued and not granted: those of waiting jobs, and of shards that died."""
    running: int | None
    """With `max_running`: how many jobs run over all shards; None: not counted."""
    is_held: bool
    """Whether the queue is paused, cooling down, or at its limit of running jobs."""
    held_until: float | None
    """When a cool-down ends; None: not held, or held until somebody resumes it or a running job ends."""
    next_slot: float | None
    """When a job that is added now would begin; None: the queue is held."""
    now: float
    """The reading of the store's clock."""
    generation: str
    """A random value that changes when the record is lost or dropped and created again."""

    waiting: int
    """This handle: jobs that wait for a slot."""
    begun: int
    """This handle: jobs that began."""
    given_up: int
    """This handle: slots that were missed or given up, each replaced by a new one."""
    causes: dict[str, int]
    """This handle: slots that were given up, by cause. `late`: another shard had already been granted a later
    slot. `away`: the same, but the slot passed while the store could not be reached. `stepped`: the store's
    clock was set. `revoked`: by `reclaim`, a longer interval or a pause.
    `thread`: the thread of a plain function was too late, and others had been handed the slots behind it.
    `cheap`: the slot was taken for a job of a smaller cost."""
    late: int
    """This handle: slots that were over before their jobs could begin, and were granted late: each costs the
    queue the time by which the process was late."""
    lateness: float | None
    """This handle: how late its process typically wakes; None: not measured yet."""
    lateness_slow: float | None
    """This handle: how late its process wakes in the worst cases, except the worst one of 32; None: as for
    `lateness`."""
    looking: float
    """This process: the share of a processor that is spent on watching the clock right before slots."""
    calls: int
    """This handle: commands sent to the store."""
    round_trip: float | None
    """This handle: how long the slower ones of its recent round trips took; None: not known yet."""
    spacing: float
    """The guaranteed minimum time between starts, over all handles: the interval minus the tolerance, and
    minus the errors of distant handles about the store's clock."""
    expected_spacing: float
    """The minimum time between starts to expect nearly always, given how late this process wakes."""
    turns: int
    """This handle: how many starts it makes in a row, with its present slots, before it is another's turn."""
    regressions: int
    """This handle: how many times the store was found to have lost writes."""
    limits: tuple[LimitState, ...] = ()
    """How full the windows of the queue's limits are."""
    binds: str | None = None
    """What the last tickets wait for, or, without any, a job that is added now: `pace`, or the `limit` of one
    of `limits`. None: nothing, or the queue is held."""

    each: str | None = None
    """What each key has for itself by the options of this handle, such as `5/s, 5000 tokens/m`; in `intervalq
    status`, by the records of its keys. None: nothing, or it isn't known."""

    auto: AutoState | None = None
    """With `rate="auto"`: the present rate, of which `interval` is the interval. None: the rate is fixed."""

    weight: int | None = None
    """The weight of a key that `configure` set for all of its handles. None: each handle has its own."""

    @property
    def has_pace(self) -> bool:
        """Whether there is an interval, and not only limits: `interval` is a microsecond then."""
        return not self.limits or self.interval > 1e-6

    def to_dict(self) -> dict[str, Any]:
        """The state as a JSON object. `interval` is null if the queue has only limits."""
        return {**asdict(self), "interval": self.interval if self.has_pace else None}


def outstanding(state: State) -> int:
    """How many tickets were issued, not granted, and not given back."""
    slots = -((state.current_due - state.due) // state.settings.interval)
    return max(0, min(state.ticket - max(state.current, state.revoked_through), slots))


def inspected(shard: Shard, answer: Answer) -> QueueState:
    """The state that a shard's answer shows; the answer must have a record."""
    state = answer.state
    assert state is not None
    state = adapt.grown(state, state.clock(answer.now))  # the interval for a job that is added now
    settings = state.settings
    is_held = state.held_since is not None
    slow, late = shard.time.trips.slow(), shard.time.lateness
    at = shard.clock.now()
    error = max(state.error, shard.time.error(state, at))
    clock = state.clock(answer.now)
    due = max(clock - state.credit, state.due + settings.interval)
    if (key := keyed_on(shard.store)) is not None:
        due = max(due, key.free(state, answer.now))
    next_slot = standing.NextSlots(state, due).next(1, ()) + state.held_total
    next_slot = max(next_slot, answer.now)
    if shard.time.hours is not None:
        next_slot = shard.time.hours.opening(next_slot, next_slot)
    return QueueState(
        name=shown(shard.queue),
        interval=settings.interval / 1e6,
        burst=settings.burst,
        max_running=settings.max_running or None,
        ticket=state.ticket,
        current=state.current,
        outstanding=outstanding(state),
        running=len(state.running) if settings.max_running else None,
        is_held=is_held,
        held_until=state.held_until / 1e6 if 0 < state.held_until < FOREVER else None,
        next_slot=None if is_held else next_slot / 1e6,
        now=answer.now / 1e6,
        generation=state.generation,
        waiting=len(shard.wait_queue),
        begun=shard.begun,
        given_up=shard.given_up,
        causes={cause: count for cause, count in shard.dispatcher.skipped.items() if count},
        late=shard.dispatcher.late,
        lateness=None if late.slow() is None else late.typical() / 1e6,
        lateness_slow=None if (worst := late.slow()) is None else worst / 1e6,
        looking=round(PROCESS.share(at), 4),
        calls=shard.calls,
        round_trip=None if slow is None else slow / 1e6,
        spacing=max(0, settings.interval - state.tolerance - 2 * error) / 1e6,
        expected_spacing=max(0, settings.interval - min(state.tolerance, late.slow() or 0) - error) / 1e6,
        turns=max(1, len(shard.grants.in_row(float("inf"), 0))),
        regressions=shard.regressions,
        limits=tuple(
            LimitState(
                limit=limits.text(each.limit),
                most=each.limit.most,
                taken=each.taken,
                left=max(0, each.limit.most - each.taken),
                free=max(answer.now, each.free + state.held_total) / 1e6,
                of_key=place < settings.own,
            )
            for place, each in enumerate(standing.standings(state, clock))
        ),
        binds=None if is_held else _binds(state, clock),
        auto=_auto(state),
        weight=state.weight or None,
    )


def _auto(state: State) -> AutoState | None:
    auto, pace = state.settings.auto, state.pace
    if auto is None or pace is None:
        return None
    return AutoState(
        rate=1e6 / state.settings.interval,
        floor=1e6 / auto.slowest,
        ceiling=1e6 / auto.fastest,
        refused=1e6 / pace.peak if pace.peak else None,
        refused_at=(pace.cut_at + state.held_total) / 1e6 if pace.peak else None,
    )


def _binds(state: State, clock: int) -> str | None:
    """What the last tickets or the next job wait for when the queue's clock reads `clock`."""
    if (limit := standing.binding(state, clock)) is not None:
        return limits.text(limit)
    return "pace" if state.settings.has_pace and state.due + state.settings.interval > clock else None

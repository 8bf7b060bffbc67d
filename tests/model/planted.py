"""Bugs planted in the abstract shard and in the rules, which the search must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final
from unittest import mock

from intervalq import rules
from intervalq._spec import configure, passing
from intervalq.rules import Answer, Command, Hold, Settings, Slot, State
from model.parts import NO_BUGS, Bugs
from model.scope import SCOPES, Scope
from planted import bugs

_FRESH: Final = configure.fresh
_GIVE_BACK: Final = rules._give_back
_RECHECK: Final = rules._recheck
_TRANSITION: Final = rules._transition
_LAPSES: Final = rules.lapses
_SET_BACK_FOR: Final = rules._set_back_for


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted bug."""

    what: str
    scope: str
    """The scope that finds it."""
    shard: Bugs = NO_BUGS
    """The bug in the shards."""
    rules: Callable[[], AbstractContextManager[object]] = nullcontext
    """A context in which the rules have the bug."""
    changes: dict[str, int] = field(default_factory=dict)
    """Changes that make that scope smaller, or strange enough, to find it soon."""

    def bound(self) -> Scope:
        """The scope to search for it."""
        return replace(SCOPES[self.scope], **self.changes)  # type: ignore[arg-type] # all of them are numbers


def _freed_twice() -> AbstractContextManager[object]:
    def give_back(state: State, slots: tuple[Slot, ...]) -> State:
        freed = _GIVE_BACK(state, slots).due < state.due or any(s.ticket == state.ticket for s in slots)
        return replace(state, due=state.due - state.settings.interval) if freed else state

    return mock.patch.object(rules, "_give_back", give_back)


def _earlier_lives_on() -> AbstractContextManager[object]:
    def recheck(state: State, now: int) -> State:
        return replace(_RECHECK(state, now), revoked_through=state.revoked_through)

    return mock.patch.object(rules, "_recheck", recheck)


def _last_hold_counts() -> AbstractContextManager[object]:
    def transition(state: State, command: Command, answer: Answer) -> tuple[State, Answer]:
        if isinstance(command, Hold):
            state = replace(state, held_until=0)
        return _TRANSITION(state, command, answer)

    return mock.patch.object(rules, "_transition", transition)


def _one_too_many() -> AbstractContextManager[object]:
    def full(state: State) -> bool:
        return 0 < state.settings.max_running < len(state.running)

    def until(state: State) -> int:
        return min(state.running.values()) if full(state) else 0

    return _both(
        mock.patch.object(State, "full", property(full)), mock.patch.object(passing, "_full_until", until)
    )


def _reclaimed_too_far() -> AbstractContextManager[object]:
    def revoke_all(state: State) -> State:
        return replace(state, revoked_through=state.ticket, due=state.current_due - state.settings.interval)

    return mock.patch.object(configure, "revoke_all", revoke_all)


def _forgotten_too_soon() -> AbstractContextManager[object]:
    def lapses(state: State) -> int:
        end = _LAPSES(state)
        return end if end == rules.FOREVER else end - 2 * state.settings.interval

    return mock.patch.object(rules, "lapses", lapses)


def _earlier_not_dead() -> AbstractContextManager[object]:
    def set_back_for(state: State, slots: Sequence[Slot], notice: int, now: int) -> State:
        return replace(_SET_BACK_FOR(state, slots, notice, now), revoked_through=state.revoked_through)

    return mock.patch.object(rules, "_set_back_for", set_back_for)


def _not_quiet() -> AbstractContextManager[object]:
    def fresh(command: Command, settings: Settings, now: int) -> State:
        return _FRESH(replace(command, generation=None), settings, now)

    return mock.patch.object(configure, "fresh", fresh)


@contextmanager
def _both(first: AbstractContextManager[object], second: AbstractContextManager[object]) -> Iterator[None]:
    with first, second:
        yield


def _simulated(name: str, scope: str, **changes: int) -> Planted:
    """A bug that the simulation finds as well."""
    return Planted(bugs.BUGS[name].what, scope, rules=lambda: bugs.planted(name), changes=changes)


PLANTED: Final[dict[str, Planted]] = {
    "slots-crowd": _simulated("slots-crowd", "calm"),
    "clock-runs-on": _simulated("clock-runs-on", "holds"),
    "hold-ignored": _simulated("hold-ignored", "holds"),
    "heal-goes-back": _simulated("heal-goes-back", "failover"),
    "not-healed": _simulated("not-healed", "failover", tickets=3),
    "step-not-absorbed": _simulated("step-not-absorbed", "steps"),
    "freed-not-dead": _simulated("freed-not-dead", "ahead"),
    "revocation-ignored": _simulated("revocation-ignored", "crashes", shards=2),
    "generation-ignored": _simulated("generation-ignored", "dropped"),
    "no-quiet-interval": Planted(
        "A record that is made anew doesn't wait for what may have begun a moment ago.",
        "dropped",
        rules=_not_quiet,
    ),
    "old-rate": _simulated("old-rate", "rates", shards=2, changes=1),
    "dead-waited-for": _simulated("dead-waited-for", "crashes", shards=2, tickets=4, reclaims=0, crashes=1),
    "gap-ignored": _simulated("gap-ignored", "late"),
    "late-for-nothing": _simulated("late-for-nothing", "late"),
    "new-at-once": _simulated("new-at-once", "late"),
    "earlier-not-dead": Planted(
        "Tickets before one that was granted late may still be granted, behind it.",
        "late",
        rules=_earlier_not_dead,
        changes={"tickets": 2},
    ),
    "freed-twice": Planted(
        "A slot that is given back twice, as its shard heard no answer, frees the one before it as well.",
        "ahead",
        rules=_freed_twice,
    ),
    "last-hold-counts": Planted(
        "A shorter pause ends a longer one.",
        "holds",
        rules=_last_hold_counts,
        changes={"holds": 2, "tickets": 2},
    ),
    "one-too-many": Planted("One job more runs than may.", "limit", rules=_one_too_many),
    "reclaimed-too-far": Planted(
        "With the tickets that are reclaimed, the slot that was used last is free again.",
        "crashes",
        rules=_reclaimed_too_far,
    ),
    "forgotten-too-soon": Planted(
        "The record of a key is forgotten while it still matters.", "keyed", rules=_forgotten_too_soon
    ),
    "no-last-check": Planted(
        "A job begins whenever it was granted, however late.", "calm", Bugs(no_last_check=True)
    ),
    "too-tolerant": Planted("A job begins a tick later than it may.", "calm", Bugs(too_tolerant=True)),
    "perhaps-come": Planted("A job begins when its slot may have come.", "blurred", Bugs(perhaps_come=True)),
    "perhaps-not-past": Planted(
        "A job begins when its slot may be past.", "blurred", Bugs(perhaps_not_past=True)
    ),
    "lost-is-granted": Planted(
        "A shard whose answer was lost takes its slots for granted, and asks for them again.",
        "calm",
        Bugs(lost_is_granted=True),
    ),
    "used-given-back": Planted(
        "The slot of a job that began is given back with the next question.",
        "calm",
        Bugs(used_given_back=True),
    ),
    "earlier-lives-on": Planted(
        "A hold moves a slot beside a later one that was already granted.",
        "holds",
        rules=_earlier_lives_on,
        changes={"interval": 2},
    ),
    "step-survived": Planted(
        "A shard keeps its tickets when the store's clock was stepped.",
        "steps",
        Bugs(step_survived=True),
    ),
    "slots-kept": Planted(
        "A shard uses the slots of a record that is gone as those of the new one.",
        "dropped",
        Bugs(slots_kept=True),
        changes={"interval": 2},
    ),
}
"""The planted bugs by name."""

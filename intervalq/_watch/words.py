"""The record of a queue in words: what the queue is doing, what it waits for, its keys. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from intervalq import QueueState
from intervalq._show import escaped, exact, seconds
from intervalq._spec.limits import rules_of
from intervalq.rules import STARTS

MAX_KEYS: Final = 20
"""The maximum number of keys of a queue in a table, unless all are wanted."""

_NAMED: Final = 5
"""How many waiting keys are named in a line of text."""

_LONG: Final = 40
"""The maximum number of characters of a key in a line of text."""


def condition(state: QueueState) -> str:
    """What the queue is doing now, in words."""
    if state.is_held:
        if state.max_running is not None and (state.running or 0) >= state.max_running:
            return "at its limit of running jobs"
        if state.held_until is None:
            return "paused"
        return f"held for another {seconds(max(0.0, state.held_until - state.now))}"
    if not state.outstanding:
        return "idle"
    if state.binds is None or state.binds == "pace":
        return "paced"
    return f"at its limit {escaped(state.binds)}"


def waits_for(state: QueueState) -> str:
    """Which limit, or the pace, now delays jobs, in words."""
    if state.binds is None:
        return "nothing"
    return "the pace" if state.binds == "pace" else f"the limit {escaped(state.binds)}"


def interval(state: QueueState) -> str:
    """The interval, in words."""
    if state.auto is not None:
        found, bounds = state.auto.rate, f"{state.auto.floor:.4g}/s to {state.auto.ceiling:.4g}/s"
        return f"{exact(state.interval)} ({found:.4g}/s, automatic, from {bounds})"
    return "none" if not state.has_pace else f"{exact(state.interval)} ({1 / state.interval:.6g}/s)"


def counted(keys: Sequence[QueueState]) -> str:
    """How many keys there are."""
    return f"{len(keys)} {'key' if len(keys) == 1 else 'keys'}"


def key_of(state: QueueState) -> str:
    """The key of a keyed queue."""
    return escaped(state.name.partition(":")[2], _LONG)


def about_keys(keys: Sequence[QueueState]) -> str:
    """How many keys there are, and which of them have outstanding tickets, those with the most first."""
    waiting = [key for key in keys if key.outstanding]
    if not waiting:
        return f"{len(keys)} known, none with outstanding tickets"
    named = [f"{key_of(key)} ({key.outstanding})" for key in waiting[:_NAMED]]
    more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    return f"{len(keys)} known, {len(waiting)} with outstanding tickets: {', '.join(named)}{more}"


def each_key(keys: Sequence[QueueState]) -> str | None:
    """The rate and the limits that each key has for itself; None: there are no keys."""
    found = {
        ", ".join(
            [*([f"{1 / key.interval:.6g}/s"] if key.has_pace else []), *(each.limit for each in key.limits)]
        )
        for key in keys
    }
    return next(iter(found), None) if len(found) < 2 else "not all have the same: see `status NAME:KEY`"


def facts(state: QueueState, keys: Sequence[QueueState] = ()) -> list[tuple[str, str]]:
    """One queue as names and values."""
    waits = f"{state.outstanding} outstanding" if state.outstanding else "none outstanding"
    rows = [
        ("queue", escaped(state.name)),
        ("state", condition(state)),
        ("interval", interval(state)),
        ("tickets", f"{state.ticket} issued, begun up to {state.current}, {waits}"),
    ]
    if state.auto is not None and state.auto.refused is not None and state.auto.refused_at is not None:
        ago = seconds(max(0.0, state.now - state.auto.refused_at))
        rows.append(("last refusal", f"about {ago} ago; the rate returns to {state.auto.refused:.4g}/s"))
    if state.burst != 1 and state.has_pace:
        rows.append(("burst", str(state.burst)))
    if state.max_running is not None:
        rows.append(("running", f"{state.running} of at most {state.max_running}"))
    if state.weight is not None:
        rows.append(("weight", f"{state.weight}, for all processes"))
    for each in state.limits:
        room = "" if each.free <= state.now else f", room for another one in {seconds(each.free - state.now)}"
        whose = "limit of the key" if each.of_key else "limit"
        rows.append((whose, f"{escaped(each.limit)}: {each.taken} taken, {each.left} left{room}"))
    if state.limits and not state.is_held:
        rows.append(("waits for", waits_for(state)))
    if state.each is not None:
        rows.append(("each key", escaped(state.each)))
    if keys:
        rows.append(("keys", about_keys(keys)))
    if state.next_slot is not None:
        ahead = state.next_slot - state.now
        rows.append(("next slot", "free now" if ahead <= 0 else f"in {seconds(ahead)}"))
        if state.outstanding and state.has_pace:
            last = ahead - state.interval
            rows.append(("last ticket", "now" if last <= 0 else f"in {seconds(last)}"))
    return rows


def possible(state: QueueState) -> float | None:
    """How many jobs a second may start, by the pace and the limits of starts; 0 while held; None: any number.

    What limits of other units allow depends on the jobs.
    """
    if state.is_held:
        return 0.0
    rates = [1 / state.interval] if state.has_pace else []
    for each in state.limits:
        [rule] = rules_of((each.limit.partition(" with a jitter")[0],))
        if rule.unit == STARTS:
            rates.append(rule.most * 1e6 / rule.window)
    return min(rates, default=None)


def rate(value: float | None) -> str:
    """Starts a second, for people; None: a dash."""
    return "-" if value is None else f"{value:.3g}/s"


def folded(states: Sequence[QueueState], most: int | None) -> Iterator[tuple[QueueState, list[QueueState]]]:
    """The states, with at most `most` keys of each queue; the last one comes with those left out."""
    for name, group in groupby(states, lambda state: state.name.partition(":")[0]):
        members = list(group)
        shown = 0
        for number, state in enumerate(members):
            shown += state.name != name
            left = members[number + 1 :] if shown == most else []
            yield state, left
            if left:
                break

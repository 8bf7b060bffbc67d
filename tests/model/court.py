"""The judges: what starts, and what may start, by true time and from outside."""

from __future__ import annotations

from model.parts import Court, Grant, Shard
from model.scope import Scope


def opened(scope: Scope) -> Court:
    """The state before anything has happened."""
    return Court(
        early=(0,) * len(scope.rates),
        made=0,
        crashes=scope.crashes,
        copies=scope.copies,
        holds=scope.holds,
        reclaims=scope.reclaims,
        changes=scope.changes,
        steps=scope.steps,
        failovers=scope.failovers,
        drops=scope.drops,
    )


def judged(scope: Scope, court: Court, grant: Grant, running: tuple[Shard, ...]) -> tuple[Court, str]:
    """A job begins; `running` are the shards once it runs."""
    broken = _limit(scope, running)
    if grant.old:
        return court, broken
    if court.used >> grant.ticket & 1:
        broken = broken or f"slot {grant.ticket} is used twice"
    elif scope.burst == 1 and court.used >> grant.ticket and not (scope.failovers and court.excuses):
        # With a burst, slots that lie behind the clock may all be used at once; and the start that is early
        # after a failover may use a slot that others gave back, because its number was issued twice.
        broken = broken or f"slot {grant.ticket} is used after a later one"
    place = scope.rates.index(grant.interval)
    early = court.early[place] - scope.window
    excuses = court.excuses
    if early > 0 and not excuses:
        broken = broken or f"a job begins {early} ticks too early"
    # Later answers know of this start, and of earlier ones only if nothing was lost.
    known = (0,) * len(court.early) if excuses else court.early
    after = tuple(before + min(grant.interval, rate) for before, rate in zip(known, scope.rates, strict=True))
    if early > 0 and excuses:
        excuses -= 1
    if scope.steps:
        excuses = 0  # all answers since then are from after the step
    return court._replace(early=after, used=court.used | 1 << grant.ticket, excuses=excuses), broken


def _limit(scope: Scope, shards: tuple[Shard, ...]) -> str:
    if not scope.max_running:
        return ""
    # A job whose lease was not renewed in time doesn't count.
    running = sum(1 for shard in shards for _, lease in shard.running if lease > 0)
    return f"{running} jobs run, {scope.max_running} may" if running > scope.max_running else ""


def later(scope: Scope, court: Court) -> Court:
    """One tick later."""
    early = tuple(max(0, before - 1) for before in court.early)
    hold = court.hold - 1 if 0 < court.hold <= max(scope.lengths[0], 0) else court.hold
    if early == court.early and hold == court.hold:
        return court
    return court._replace(early=early, hold=hold)

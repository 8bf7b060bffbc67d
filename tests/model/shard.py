"""The abstract shard by itself: it learns, begins, gives up. Pure functions of one shard."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from model.parts import Bugs, Grant, Question, Reply, Shard, Slot
from model.scope import Scope


def questions(scope: Scope, shard: Shard) -> Iterator[tuple[Question, Shard]]:
    """All questions that it may ask now, and the shard once the question is in transit."""
    for near in range(len(shard.tickets) + 1):
        slots = shard.tickets[:near]
        room = scope.ahead - len(shard.tickets) - len(shard.granted)
        last = near == len(shard.tickets)
        for take in range(max(0, room) + 1):
            if not near and not take and not scope.looking:
                continue
            for release in (shard.unused, ()) if shard.unused else ((),):
                kept = shard if not release else shard._replace(unused=())
                # A ticket that is not asked about yet comes before any new one.
                for reach in scope.reaches if last and near + take else (0,):
                    for notice in scope.notices if near + take else (0,):
                        mark = shard.mark if scope.marks else ()
                        question = Question(shard.gen, slots, release, take, notice, reach, mark)
                        yield question._replace(late=_may_be_late(scope, shard, slots)), kept


def _may_be_late(scope: Scope, shard: Shard, slots: tuple[Slot, ...]) -> int:
    # How far behind the clock an older slot lies isn't known any more.
    if not scope.late or not slots or slots[0].due <= -scope.oldest:
        return 0
    return 2 if shard.stale else 1


def arriving(scope: Scope, question: Question, queue: int) -> Question:
    """A question that is still in transit after the queue's clock has advanced by this much."""
    slots, release = aged(scope, question.slots, queue), aged(scope, question.release, queue)
    late = question.late if slots and slots[0].due > -scope.oldest else 0
    return question._replace(slots=slots, release=release, late=late)


def farewell(scope: Scope, shard: Shard) -> tuple[Question, Shard] | None:
    """Give everything back, because all waiting jobs were cancelled. None: there is nothing."""
    back = (*shard.unused, *(grant.slot for grant in shard.granted), *shard.tickets)
    if not back:
        return None
    ended = (*shard.ended, *(grant.ticket for grant in shard.granted)) if scope.max_running else ()
    left = shard._replace(unused=(), granted=(), tickets=(), ended=tuple(sorted(ended)))
    return Question(shard.gen, release=back, mark=shard.mark if scope.marks else ()), left


def hears(scope: Scope, shard: Shard, reply: Reply, bugs: Bugs) -> Shard:
    """The shard after it has processed an answer."""
    low, high = max(shard.low, reply.low), min(shard.high, reply.high)
    if low > high:
        # The store's clock was stepped: everything that was fixed on it is invalid.
        low, high = reply.low, reply.high
        shard = gives_up(scope, shard, len(shard.granted))
        while shard.tickets and not bugs.step_survived:
            shard = passes(shard)
    if reply.gen != shard.gen and not bugs.slots_kept:
        shard = shard._replace(tickets=(), granted=(), unused=())
    granted = shard.granted
    if reply.low <= 0 <= reply.high and any(grant.old & 2 for grant in granted):
        # It has learned of the step, if there was one, so there is no excuse any more.
        granted = tuple(grant._replace(old=grant.old & 1) for grant in granted)
    had = {slot.ticket for slot in shard.tickets}
    granted += tuple(grant for grant in reply.granted if grant.ticket in had) + reply.begun
    gone = {*reply.missed, *(grant.ticket for grant in reply.granted)}
    return shard._replace(
        gen=reply.gen,
        tickets=tuple(slot for slot in shard.tickets if slot.ticket not in gone) + reply.taken,
        granted=granted,
        mark=reply.mark,
        reply=(),
        low=low,
        high=high,
        stale=reply.stale,
    )


def loses(scope: Scope, shard: Shard, reply: Reply, bugs: Bugs) -> Shard:
    """The answer, or the question, got lost: nobody can tell which."""
    shard = shard._replace(reply=(), unused=tuple(sorted({*shard.unused, *reply.release})))
    if bugs.lost_is_granted:
        shard = shard._replace(granted=shard.granted + reply.granted)
    return shard


def may_begin(scope: Scope, shard: Shard, bugs: Bugs) -> bool:
    """The last check: its first slot has certainly come, and is certainly not over."""
    if not shard.granted:
        return False
    instant = shard.granted[0].instant
    come = shard.high if bugs.perhaps_come else shard.low
    past = shard.low if bugs.perhaps_not_past else shard.high
    late = instant + scope.window + (1 if bugs.too_tolerant else 0)
    return (come >= instant or shard.granted[0].at_once) and (past <= late or bugs.no_last_check)


def begins(scope: Scope, shard: Shard, bugs: Bugs) -> Shard:
    """A job begins in its first slot."""
    grant = shard.granted[0]
    running = shard.running
    if scope.max_running:
        running = tuple(sorted((*running, (grant.ticket, grant.lease))))
    unused = (*shard.unused, grant.slot) if bugs.used_given_back else shard.unused
    return shard._replace(granted=shard.granted[1:], running=running, unused=unused)


def gives_up(scope: Scope, shard: Shard, count: int) -> Shard:
    """The first granted slots can't be used after all."""
    if not count:
        return shard
    gone = shard.granted[:count]
    ended = (*shard.ended, *(grant.ticket for grant in gone)) if scope.max_running else shard.ended
    return shard._replace(
        granted=shard.granted[count:],
        unused=tuple(sorted({*shard.unused, *(grant.slot for grant in gone)})),
        ended=tuple(sorted(ended)),
    )


def asks_again(shard: Shard, count: int) -> Shard:
    """The first granted slots are over: it asks about them once more."""
    again = tuple(grant.slot for grant in shard.granted[:count])
    return shard._replace(granted=shard.granted[count:], tickets=(*again, *shard.tickets))


def passes(shard: Shard) -> Shard:
    """It believes its next ticket lost."""
    return shard._replace(tickets=shard.tickets[1:], unused=tuple(sorted({*shard.unused, shard.tickets[0]})))


@lru_cache(maxsize=1 << 18)
def moved(scope: Scope, shard: Shard, true: int, store: int, queue: int) -> Shard:
    """The same shard after true time, the store's clock and the queue's have advanced by this much."""
    if shard.gen < 0:
        return shard
    return shard._replace(
        tickets=aged(scope, shard.tickets, queue),
        granted=_aged_grants(scope, shard.granted, true, store, queue),
        unused=aged(scope, shard.unused, queue),
        reply=tuple(
            reply._replace(
                mark=_aged_mark(scope, reply.mark, queue),
                granted=_aged_grants(scope, reply.granted, true, store, queue),
                begun=_aged_grants(scope, reply.begun, true, store, queue),
                taken=aged(scope, reply.taken, queue),
                release=aged(scope, reply.release, queue),
                low=reply.low - (store - true),
                high=reply.high - (store - true),
            )
            for reply in shard.reply
        ),
        mark=_aged_mark(scope, shard.mark, queue),
        running=tuple((ticket, max(0, lease - true)) for ticket, lease in shard.running),
        low=shard.low if shard.high - shard.low > 50 else shard.low - (store - true),
        high=shard.high if shard.high - shard.low > 50 else shard.high - (store - true),
    )


def aged(scope: Scope, slots: tuple[Slot, ...], queue: int) -> tuple[Slot, ...]:
    """Slots after the queue's clock has advanced by this much."""
    return tuple(Slot(ticket, max(due - queue, -scope.oldest), old) for ticket, due, old in slots)


def _aged_mark(scope: Scope, mark: tuple[int, ...], queue: int) -> tuple[int, ...]:
    return (mark[0], max(mark[1] - queue, -scope.oldest)) if mark else ()


def _aged_grants(
    scope: Scope, grants: tuple[Grant, ...], true: int, store: int, queue: int
) -> tuple[Grant, ...]:
    return tuple(
        Grant(
            grant.ticket,
            max(grant.due - queue, -scope.oldest),
            grant.old,
            max(grant.instant - store, -scope.longest),
            max(0, grant.lease - true),
            grant.interval,
            grant.at_once,
        )
        for grant in grants
    )


def outlived(one: Shard) -> Shard:
    """Slots that were issued before the store lost writes: it may issue their numbers again."""
    return one._replace(
        tickets=tuple(slot._replace(old=1) for slot in one.tickets),
        granted=tuple(grant._replace(old=grant.old | 1) for grant in one.granted),
        unused=tuple(slot._replace(old=1) for slot in one.unused),
        reply=tuple(
            reply._replace(
                granted=tuple(grant._replace(old=grant.old | 1) for grant in reply.granted),
                begun=tuple(grant._replace(old=grant.old | 1) for grant in reply.begun),
                taken=tuple(slot._replace(old=1) for slot in reply.taken),
                release=tuple(slot._replace(old=1) for slot in reply.release),
            )
            for reply in one.reply
        ),
    )


def stepped(one: Shard) -> Shard:
    """Slots that were granted before a step of the store's clock that their shard hasn't heard of."""
    return one._replace(
        granted=tuple(grant._replace(old=grant.old | 2) for grant in one.granted),
        reply=tuple(
            reply._replace(
                granted=tuple(grant._replace(old=grant.old | 2) for grant in reply.granted),
                begun=tuple(grant._replace(old=grant.old | 2) for grant in reply.begun),
            )
            for reply in one.reply
        ),
    )

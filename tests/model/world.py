"""Everything that may happen next: the abstract shards, the network to the store, its faults, and time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from intervalq.rules import FOREVER
from model import court, shard
from model.parts import DEAD, NO_BUGS, Bugs, Grant, Question, Record, Reply, Shard, Slot, Step, World
from model.scope import Scope
from model.store import Outcome, Store


class Asking(NamedTuple):
    """A question that a shard may ask, and its consequences."""

    question: Question
    shard: Shard
    """The shard once the question is in transit."""
    outcome: Outcome | None
    """None: it exceeds the bound."""
    answered: tuple[tuple[Reply, Shard], ...] = ()
    """All possible answers, and the shard while each is in transit."""


class Alone(NamedTuple):
    """What a shard may do by itself; an impossible action leaves it unchanged."""

    begun: Shard | None
    given_up: Shard
    heard: Shard
    back: str
    """The violation in what it learned."""
    lost: Shard


class Worlds:
    """The transitions of one scope. What depends only on shards, or on them and the record, is cached."""

    def __init__(self, scope: Scope, bugs: Bugs = NO_BUGS) -> None:
        self.scope = scope
        self.bugs = bugs
        self.store = Store(scope)
        self.first = World(None, (), (Shard(),) * scope.shards, (), court.opened(scope))
        blur = scope.blur
        self._samples = tuple((low, low + blur) for low in range(-blur, 1))
        self._askings: dict[tuple[Record | None, Shard, int], tuple[Asking, ...]] = {}
        self._alone: dict[Shard, Alone] = {}
        self._tidy_ones: dict[tuple[Shard, int], Shard] = {}

    def steps(self, world: World) -> Iterator[Step]:
        """Every transition from a state whose shards are sorted."""
        before: Shard | None = None
        for who, one in enumerate(world.shards):
            if one.gen >= 0 and one != before:  # a shard that equals the previous one does the same
                yield from self._shard(world, who, one)
            before = one
        yield from self._requests(world)
        yield from self._keepers(world)
        yield from self._faults(world)
        yield self._tick(world)

    def waits(self, world: World) -> bool:
        """Whether a job must be able to begin some time: a shard may take a ticket, or has one in time."""
        scope, record = self.scope, world.record
        if world.shards[-1].gen < 0 or any(one.mark and one.mark[0] >= scope.tickets for one in world.shards):
            return False  # no shard is alive, or the record will be healed to the last ticket
        if record is None or record.ticket < scope.tickets:
            # A record that may be forgotten doesn't count if no other may be created.
            return world.court.made < scope.records or (record is not None and not scope.ephemeral)
        return not scope.failovers and any(
            slot.due >= 0 and slot.ticket > record.revoked_through
            for one in world.shards
            if one.gen == record.gen and not one.reply
            for slot in one.tickets
        )

    # --- shards -------------------------------------------------------------------------------------

    def _shard(self, world: World, who: int, one: Shard) -> Iterator[Step]:
        scope = self.scope
        alone = self._alone.get(one)
        if alone is None:
            alone = self._alone[one] = self._found_alone(one)
        if alone.begun is not None:
            grant = one.granted[0]
            shards = _with(world.shards, who, alone.begun)
            after, broken = court.judged(scope, world.court, grant, shards)
            then = World(world.record, world.copy, shards, world.requests, after)
            yield Step(who, "begins", (grant,), then, broken, begins=True)
        if one.granted:
            yield Step(who, "gives up", one.granted[:1], self._put(world, who, alone.given_up))
        if one.reply:
            yield Step(who, "hears", one.reply, self._put(world, who, alone.heard), alone.back)
            yield Step(who, "loses the answer", (), self._put(world, who, alone.lost), trouble=True)
        else:
            yield from self._asks(world, who, one)
        if scope.max_running:
            yield from self._jobs(world, who, one)
        if world.court.crashes:
            left = world.court._replace(crashes=world.court.crashes - 1)
            yield Step(who, "crashes", (), self._put(world._replace(court=left), who, DEAD), trouble=True)

    def _asks(self, world: World, who: int, one: Shard) -> Iterator[Step]:
        scope = self.scope
        if scope.passing and one.tickets:
            yield Step(who, "passes over", one.tickets[:1], self._put(world, who, shard.passes(one)))
        key = (world.record, one, world.court.made)
        askings = self._askings.get(key)
        if askings is None:
            askings = self._askings[key] = tuple(self._found_askings(*key))
        for asking in askings:
            yield from self._sent(world, who, asking, "asks")
            if world.court.copies:
                # Its shard believes it lost, and it arrives later.
                question = asking.question
                left = world.court._replace(copies=world.court.copies - 1)
                release = tuple(sorted({*asking.shard.unused, *question.release}))
                then = world._replace(court=left, requests=_and(world.requests, question))
                lost = self._put(then, who, asking.shard._replace(unused=release))
                yield Step(who, "asks, late", (question,), lost, trouble=True)
                yield from self._sent(then, who, asking, "asks, twice", trouble=True)

    def _sent(
        self, world: World, who: int, asking: Asking, what: str, *, trouble: bool = False
    ) -> Iterator[Step]:
        """A question arrives, and its answer is in transit."""
        outcome, question = asking.outcome, asking.question
        if outcome is None:
            return
        then, broken = self._followed(world, question, outcome), self._wrong(world, outcome)
        for reply, after in asking.answered:
            yield Step(who, what, (question, reply), self._put(then, who, after), broken, trouble)

    def _found_alone(self, one: Shard) -> Alone:
        scope, bugs = self.scope, self.bugs
        begun = shard.begins(scope, one, bugs) if shard.may_begin(scope, one, bugs) else None
        given_up = shard.gives_up(scope, one, 1) if one.granted else one
        if not one.reply:
            return Alone(begun, given_up, one, "", one)
        reply = one.reply[0]
        back = reply.gen == one.gen and reply.mark[:1] < one.mark[:1]
        broken = f"it knew of ticket {one.mark[0]}, and is told of {reply.mark[0]}" if back else ""
        heard, lost = shard.hears(scope, one, reply, bugs), shard.loses(scope, one, reply, bugs)
        return Alone(begun, given_up, heard, broken, lost)

    def _found_askings(self, record: Record | None, one: Shard, made: int) -> Iterator[Asking]:
        scope = self.scope
        questions = list(shard.questions(scope, one))
        if scope.leaving and (end := shard.farewell(scope, one)) is not None:
            questions.append(end)
        for question, asking in questions:
            outcome = self._answered(record, made, question)
            if outcome is None:
                yield Asking(question, asking, None)
                continue
            now = shard.moved(scope, asking, 0, 0, -outcome.back) if outcome.back else asking
            slots = {slot.ticket: slot for slot in shard.aged(scope, question.slots, -outcome.back)}
            granted = tuple(self._granted(slots[ticket], outcome) for ticket in outcome.granted)
            begun = tuple(self._granted(slot, outcome) for slot in outcome.taken[: outcome.begun])
            if outcome.at_once and scope.late:
                granted, begun = _at_once(granted), begun if granted else _at_once(begun)
            replies = [
                Reply(
                    gen=outcome.gen,
                    mark=outcome.mark if scope.marks else (),
                    granted=granted,
                    missed=outcome.missed,
                    begun=begun,
                    taken=outcome.taken[outcome.begun :],
                    release=shard.aged(scope, question.release, -outcome.back),
                    low=low,
                    high=high,
                )
                for low, high in self._samples
            ]
            answered = tuple((reply, now._replace(reply=(reply,))) for reply in replies)
            yield Asking(question, asking, outcome, answered)

    def _granted(self, slot: Slot, outcome: Outcome) -> Grant:
        lease = self.scope.lease if self.scope.max_running else 0
        instant = max(slot.due + outcome.shift, -self.scope.longest)
        return Grant(slot.ticket, slot.due, slot.old, instant, lease, outcome.interval)

    def _jobs(self, world: World, who: int, one: Shard) -> Iterator[Step]:
        """Jobs end, and their shard reports it."""
        for place, (ticket, _) in enumerate(one.running):
            running = one.running[:place] + one.running[place + 1 :]
            after = one._replace(running=running, ended=tuple(sorted((*one.ended, ticket))))
            yield Step(who, "a job ends", (ticket,), self._put(world, who, after))
        if (one.running or one.ended) and not one.reply:
            tickets = tuple(ticket for ticket, _ in one.running)
            question = Question(one.gen, ended=one.ended, running=tickets)
            applied = self._applied(world, question)
            if applied is None:
                return
            then, outcome = applied
            lease = self.scope.lease
            # A job whose lease has lapsed was renewed too late, and doesn't count any more.
            known = one._replace(
                running=tuple((ticket, lease if left else 0) for ticket, left in one.running)
            )
            yield Step(
                who,
                "tells of its jobs",
                (question,),
                self._put(then, who, known._replace(ended=())),
                self._wrong(world, outcome),
            )
            if one.ended:
                lost = self._put(then, who, known)
                yield Step(who, "tells of its jobs, and hears nothing", (question,), lost, trouble=True)

    # --- the store ----------------------------------------------------------------------------------

    def _applied(self, world: World, question: Question) -> tuple[World, Outcome] | None:
        """The world after a question was answered. None: it exceeds the bound."""
        outcome = self._answered(world.record, world.court.made, question)
        return None if outcome is None else (self._followed(world, question, outcome), outcome)

    def _answered(self, record: Record | None, made: int, question: Question) -> Outcome | None:
        outcome = self.store.ask(record, question, made + 1)
        if outcome.record is not None and outcome.record.ticket > self.scope.tickets:
            return None
        return None if outcome.made and made == self.scope.records else outcome

    def _followed(self, world: World, question: Question, outcome: Outcome) -> World:
        now = world.court
        if outcome.back:
            world = self._set_back(world, outcome.back)
        if not outcome.made:
            return World(outcome.record, world.copy, world.shards, world.requests, now)
        # A shard that knew of no record can't know that a job may have begun a moment ago.
        excused = not question.gen and self.scope.drops > now.drops
        now = now._replace(made=now.made + 1, used=0, excuses=now.excuses + excused)
        shards = world.shards if world.record is None else tuple(shard.outlived(one) for one in world.shards)
        return World(outcome.record, world.copy, shards, world.requests, now)

    def _set_back(self, world: World, back: int) -> World:
        """Shards other than the one that asked haven't learned that a slot was granted late."""
        shards = tuple(
            shard.moved(self.scope, one, 0, 0, -back)._replace(stale=True) if one.gen >= 0 else one
            for one in world.shards
        )
        shards = tuple(
            one._replace(reply=tuple(reply._replace(stale=True) for reply in one.reply)) for one in shards
        )
        requests = tuple(one._replace(late=2 if one.late else 0) for one in world.requests)
        return world._replace(shards=shards, requests=self._aged(requests, -back))

    @staticmethod
    def _wrong(world: World, outcome: Outcome) -> str:
        reported = bool(outcome.granted or outcome.begun)
        if reported and world.court.hold > 0:
            return outcome.broken or "the queue is paused, and a slot was granted"
        return outcome.broken

    def _requests(self, world: World) -> Iterator[Step]:
        for place, question in enumerate(world.requests):
            left = world._replace(requests=world.requests[:place] + world.requests[place + 1 :])
            applied = self._applied(left, question)
            if applied is not None:
                then, outcome = applied
                broken = self._wrong(world, outcome)
                yield Step(-1, "a late request arrives", (question,), self._tidy(then), broken, trouble=True)

    def _keepers(self, world: World) -> Iterator[Step]:
        """An operator pauses the queue, changes its rate, ..."""
        now, record = world.court, world.record
        if record is None:
            return
        if now.holds:
            for length in self.scope.lengths:
                after = now._replace(holds=now.holds - 1, hold=max(now.hold, length))
                yield self._kept(world._replace(court=after), "hold", length, trouble=True)
        if now.hold:
            yield self._kept(world._replace(court=now._replace(hold=0)), "resume")
        if now.reclaims:
            after = now._replace(reclaims=now.reclaims - 1)
            yield self._kept(world._replace(court=after), "reclaim", trouble=True)
        if now.changes:
            after = now._replace(changes=now.changes - 1)
            for interval in self.scope.intervals:
                if interval != record.interval:
                    yield self._kept(world._replace(court=after), "configure", interval, trouble=True)

    def _kept(self, world: World, what: str, value: int = 0, *, trouble: bool = False) -> Step:
        outcome = self.store.other(world.record, what, value)
        after = self._tidy(world._replace(record=outcome.record))
        detail = () if not value else ("for ever" if value == FOREVER else value,)
        return Step(-1, f"somebody: {what}", detail, after, outcome.broken, trouble=trouble)

    def _faults(self, world: World) -> Iterator[Step]:
        now, record = world.court, world.record
        if record is None:
            return
        if now.drops:
            after = now._replace(drops=now.drops - 1, used=0)
            shards = tuple(shard.outlived(one) for one in world.shards)
            gone = World(None, (), shards, world.requests, after)
            yield Step(-1, "the record is lost", (), gone, trouble=True)
        if now.failovers and not world.copy:
            yield Step(-1, "a replica falls behind", (), world._replace(copy=(record,)), trouble=True)
        elif now.failovers:
            yield self._failover(world, world.copy[0])
        if now.steps:
            for stride in self.scope.strides:
                yield self._stride(world, record, stride)

    def _failover(self, world: World, copy: Record) -> Step:
        after = world.court._replace(failovers=world.court.failovers - 1, used=0, excuses=1)
        record, went, _ = self.store.aged(copy, 0, step=True)
        shards = tuple(shard.moved(self.scope, shard.outlived(one), 0, 0, went) for one in world.shards)
        requests = self._aged(world.requests, went)
        then = self._tidy(World(record, (), shards, requests, after))
        return Step(-1, "the store fails over to the replica", (), then, trouble=True)

    def _stride(self, world: World, record: Record, stride: int) -> Step:
        excuses = world.court.excuses + (stride > 0)
        after = world.court._replace(steps=world.court.steps - 1, excuses=excuses)
        record, went, _ = self.store.aged(record, stride, step=True)
        shards = tuple(shard.moved(self.scope, shard.stepped(one), 0, stride, went) for one in world.shards)
        then = World(record, (), shards, self._aged(world.requests, went), after)
        return Step(-1, "the store's clock steps", (stride,), then, trouble=True)

    def _tick(self, world: World) -> Step:
        record, went, broken, copy = world.record, 0, "", world.copy
        if record is not None:
            record, went, broken = self.store.aged(record, 1)
            if world.court.hold > 0 and went and not self.scope.steps:
                broken = broken or "the queue is paused, and its clock goes on"
            copy = tuple(self.store.rebased(one, went) for one in copy)
        shards = tuple(shard.moved(self.scope, one, 1, 1, went) for one in world.shards)
        after = court.later(self.scope, world.court)
        then = World(record, copy, shards, self._aged(world.requests, went), after)
        return Step(-1, "a tick", (), self._tidy(then), broken)

    def _aged(self, requests: tuple[Question, ...], went: int) -> tuple[Question, ...]:
        if not requests or not went:
            return requests
        return tuple(shard.arriving(self.scope, one, went) for one in requests)

    # --- one form for what is alike -----------------------------------------------------------------

    def _put(self, world: World, who: int, one: Shard) -> World:
        shards = _with(world.shards, who, one)
        return self._tidy(World(world.record, world.copy, shards, world.requests, world.court))

    def _tidy(self, world: World) -> World:
        """Forget what can't matter any more."""
        ticket = 0 if world.record is None else world.record.ticket
        shards = world.shards
        for place, one in enumerate(shards):
            if one.granted or one.unused:  # nothing else is ever forgotten
                key = (one, ticket)
                tidied = self._tidy_ones.get(key)
                if tidied is None:
                    tidied = self._tidy_ones[key] = self._tidied(one, ticket)
                if tidied is not one:
                    shards = _with(shards, place, tidied)
        if shards is world.shards:
            return world
        return World(world.record, world.copy, shards, world.requests, world.court)

    def _tidied(self, one: Shard, last: int) -> Shard:
        scope = self.scope
        if one.granted and not scope.steps and not self.bugs.late:
            past = 0
            while past < len(one.granted) and one.granted[past].instant + scope.window < one.low:
                past += 1
            one = shard.asks_again(one, past) if scope.late else shard.gives_up(scope, one, past)
        if one.unused and not scope.failovers and not scope.drops and not scope.ephemeral:
            # Only the last issued slots become free again, and no ticket becomes the last one again.
            own = {slot.ticket for slot in (*one.unused, *one.tickets)}
            own |= {grant.ticket for grant in one.granted}
            for reply in one.reply:
                own |= {slot.ticket for slot in reply.taken} | {grant.ticket for grant in reply.begun}
            while last in own:
                last -= 1
            if one.unused[0].ticket <= last:
                one = one._replace(unused=tuple(slot for slot in one.unused if slot.ticket > last))
        return one


def _with(shards: tuple[Shard, ...], who: int, one: Shard) -> tuple[Shard, ...]:
    return (*shards[:who], one, *shards[who + 1 :])


def _at_once(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    return (grants[0]._replace(at_once=True), *grants[1:]) if grants else grants


def _and(requests: tuple[Question, ...], one: Question) -> tuple[Question, ...]:
    return tuple(sorted((*requests, one)))

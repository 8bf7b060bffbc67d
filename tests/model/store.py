"""The store of the model: the library's own rules, on records whose instants are counted from now."""

from __future__ import annotations

from typing import Final, NamedTuple

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Reclaim,
    Resume,
    Settings,
    State,
)
from intervalq.rules import Slot as RealSlot
from model.parts import Question, Record, Slot
from model.scope import Scope

NOW: Final = 1_000
"""The reading of the store's clock in every state."""

ORIGIN: Final = 500
"""The reading of the queue's clock in every state."""


class Outcome(NamedTuple):
    """The result of a command."""

    record: Record | None
    gen: int = 0
    granted: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    taken: tuple[Slot, ...] = ()
    begun: int = 0
    shift: int = 0
    """Convert instants from the queue's clock to the store's."""
    interval: int = 0
    mark: tuple[int, ...] = ()
    made: bool = False
    broken: str = ""
    back: int = 0
    """How far the queue's clock was set back, because a slot was granted late."""
    at_once: bool = False
    """Whether the first granted slot may be used at once."""


class Store:
    """Applies the rules; each step is cached."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._settings = Settings(
            scope.interval, scope.burst, scope.max_running, scope.tolerance, scope.ephemeral
        )
        self._asked: dict[tuple[Record | None, Question, int], Outcome] = {}
        self._others: dict[tuple[Record | None, str, int], Outcome] = {}
        self._aged: dict[tuple[Record, int, bool], tuple[Record, int, str]] = {}

    def ask(self, record: Record | None, question: Question, made: int) -> Outcome:
        """A shard's question; `made` is the number of a record that it creates."""
        key = (record, question, made)
        outcome = self._asked.get(key)
        if outcome is None:
            outcome = self._asked[key] = self._apply(record, self._command(question, made))
        return outcome

    def other(self, record: Record | None, what: str, value: int = 0) -> Outcome:
        """A command of an operator."""
        key = (record, what, value)
        outcome = self._others.get(key)
        if outcome is None:
            commands: dict[str, Command] = {
                "hold": Hold(length=value),
                "resume": Resume(),
                "reclaim": Reclaim(),
                "configure": Configure(interval=value),
                "drop": Drop(),
            }
            outcome = self._others[key] = self._apply(record, commands[what])
        return outcome

    def aged(self, record: Record, by: int, *, step: bool = False) -> tuple[Record, int, str]:
        """The record when the store's clock is `by` further; how far the queue's advanced; the violation."""
        key = (record, by, step)
        known = self._aged.get(key)
        if known is None:
            before = self._state(record)
            after = rules.settle(before, NOW + by)
            origin = after.clock(NOW + by)
            went = origin - ORIGIN
            # Only a step back of the clock depends on when the record was last read.
            kept = before if self._scope.steps else after
            known = (
                self._record(kept, NOW + by, origin),
                went,
                "" if step else self._wrong(record, went, by),
            )
            self._aged[key] = known
        return known

    def rebased(self, record: Record, origin: int) -> Record:
        """Another record, after the queue's clock advanced by this much and the store's by one."""
        after = self._state(record)
        if not self._scope.steps:
            after = rules.settle(after, NOW + 1)
        return self._record(after, NOW + 1, ORIGIN + origin)

    def _wrong(self, record: Record, went: int, by: int) -> str:
        """Check that the queue's clock advances with the store's, except while the queue is held."""
        if not 0 <= went <= by:
            return f"the queue's clock went on by {went} ticks in {by}"
        # After a step back it stands still until a shard asks.
        if record.since is None and went != by and not self._scope.steps:
            return "the queue's clock stands still, and nothing holds the queue"
        return ""

    def _command(self, question: Question, made: int) -> Command:
        generation = str(question.gen) if question.gen > 0 else None
        if question.ended or question.running:
            return Finish(
                settings=self._settings,
                generation=generation,
                nonce=str(made),
                ended=question.ended,
                running=question.running,
                lease=self._scope.lease,
            )
        return Advance(
            settings=self._settings,
            generation=generation,
            nonce=str(made),
            release=tuple(_real(slot) for slot in sorted(question.release)),
            slots=tuple(_real(slot) for slot in question.slots),
            take=question.take,
            notice=question.notice,
            reach=question.reach,
            lease=self._scope.lease,
            until=NOW if question.late else None,
            high_water_mark=_mark(question),
        )

    def _apply(self, record: Record | None, command: Command) -> Outcome:
        before = None if record is None else self._state(record)
        state, answer = rules.apply(before, command, NOW)
        if state is None or answer.state is None:
            return Outcome(None)
        made = before is None or before.generation != state.generation
        broken = "" if made or before is None else _backwards(before, state)
        settled = None if before is None else rules.settle(before, NOW)
        if not made and settled is not None and settled.held_since is not None and _grants(answer):
            broken = broken or "the queue is held, and a slot was granted"
        origin = state.clock(NOW)
        back = 0 if settled is None else state.late_total - settled.late_total
        if not made and settled is not None and origin + back != settled.clock(NOW):
            broken = broken or "a command moved the queue's clock"
        return Outcome(
            record=self._record(state, NOW, origin),
            gen=int(state.generation),
            granted=answer.granted,
            missed=answer.missed,
            taken=tuple(Slot(slot.ticket, slot.due - origin) for slot in answer.taken),
            begun=answer.begun,
            shift=origin + state.held_total - NOW,
            interval=state.settings.interval,
            mark=(state.ticket, state.due - origin),
            made=made,
            broken=broken,
            back=back,
            at_once=answer.at_once,
        )

    def _state(self, record: Record) -> State:
        scope = self._scope
        settings = Settings(record.interval, scope.burst, scope.max_running, scope.tolerance, scope.ephemeral)
        until = record.until
        return State(
            generation=str(record.gen),
            settings=settings,
            ticket=record.ticket,
            due=record.due + ORIGIN,
            current=record.current,
            current_due=record.at + ORIGIN,
            revoked_through=record.revoked_through,
            held_total=record.held + NOW - ORIGIN,
            held_since=None if record.since is None else record.since + NOW,
            held_until=0 if until is None else until if until == FOREVER else until + NOW,
            last_now=record.seen + NOW,
            running={ticket: end + NOW for ticket, end in record.running},
        )

    def _record(self, state: State, now: int, origin: int) -> Record:
        scope = self._scope
        until = state.held_until
        # Only the difference of a hold matters: the queue's clock stands still, however long ago it began.
        since = state.held_since
        held = state.held_total - (now if since is None else since) + origin
        farthest = max((abs(stride) for stride in scope.strides), default=0)
        return Record(
            gen=int(state.generation),
            interval=state.settings.interval,
            ticket=state.ticket,
            due=max(state.due - origin, -scope.oldest),
            current=state.current,
            at=max(state.current_due - origin, -scope.oldest),
            revoked_through=state.revoked_through,
            held=held,
            since=None if since is None else 0,
            until=None if until == 0 else until if until == FOREVER else until - now,
            # Only a step back to before this reading would matter.
            seen=max(state.last_now - now, -farthest),
            running=tuple(sorted((ticket, end - now) for ticket, end in state.running.items())),
        )


def _real(slot: Slot) -> RealSlot:
    return RealSlot(slot.ticket, slot.due + ORIGIN)


def _mark(question: Question) -> HighWaterMark | None:
    if question.mark:
        return HighWaterMark(question.mark[0], question.mark[1] + ORIGIN)
    # The record of a state doesn't contain late grants; a question that is behind contains less.
    return HighWaterMark(0, 0, -1 if question.late == 2 else 0) if question.late else None


def _grants(answer: Answer) -> bool:
    return bool(answer.granted or answer.begun)


def _backwards(before: State, after: State) -> str:
    for name in ("ticket", "current", "revoked_through"):
        if getattr(after, name) < getattr(before, name):
            return f"the counter {name!r} went back from {getattr(before, name)} to {getattr(after, name)}"
    if after.clock(after.last_now) + after.late_total < before.clock(before.last_now):
        return "the queue's clock went back"
    return ""

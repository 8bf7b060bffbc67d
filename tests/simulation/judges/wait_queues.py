"""When a job's slot would come: by its process's tickets, and by asking the rules for those that are missing.

The store's record, its clock, and who waits are taken from what was observed in true time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple, TypeAlias, TypeVar

from intervalq._spec.standing import placed
from intervalq.rules import FOREVER, Advance, Inspect, Slot, State, Units, apply
from simulation.facts import ObservedJob
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_FRESH: Final = 0.05
"""A job may be refused by an answer that is younger than this, in seconds, without asking again."""

_REACTION: Final = 0.001
"""How long a process needs at least to react to an answer, in seconds."""

_STEPS: Final = 1e-3
"""The time that some steps of a process take whose time passes in them, in seconds."""

_PAUSE: Final = 0.02
"""The longest pause after the first failed attempt at a job, in seconds."""

_STARTS: Final = "starts"

T = TypeVar("T")

Opened: TypeAlias = tuple[State, int, bool]
"""See `_opened`."""

Wants: TypeAlias = tuple[tuple[int, Units], ...]
"""What jobs cost, and what they take of the limits."""


class Outlook(NamedTuple):
    """When a slot would come, by one version of the record."""

    begins: float
    """The true time."""
    is_open: bool
    """Whether the queue is held until nobody knows when."""
    is_owned: bool
    """Whether the process already has the ticket."""


class WaitQueues:
    """The wait queues of all processes at any instant, and what their jobs could expect then."""

    def __init__(self, seen: Observer, plan: Plan) -> None:
        self._seen = seen
        self._rate = 1 + plan.store_ppm / 1e6
        self._lateness = {each.name: each.lateness for each in plan.processes}
        # Many questions differ in nothing that matters to the rules, which take most of the time here. Each
        # record is kept beside its answer, so that no other one gets its id.
        self._openings = dict[tuple[int, int], tuple[State, Opened]]()
        self._issued = dict[tuple[int, int, Wants], tuple[State, int]]()

    def outlooks(self, job: ObservedJob, at: float, *, by_last: bool = False) -> list[Outlook]:
        """When a job's slot would come: by each version of the record that its process could go by.

        `by_last`: also by the last one that it was shown, however long ago.
        """
        seen, slowest = self._seen, self._slowest(job.process, at)
        heard, known = self.heard(job.process, at)
        states = [state for when, _, state in seen.history if at - _FRESH - slowest < when <= at]
        states += [state for when, _, state in reversed(seen.history) if when <= at][:1]
        found = list[Outlook]()
        waiting = self.ahead(job, at)
        # A job that asks first whether it can begin in time doesn't wait meanwhile, nor between attempts.
        entered = [
            each for each in waiting if not each.starts and (each.plan.timeout is None or each.added <= heard)
        ]
        # It is there once a request that was sent after it came has been answered.
        sent = max((sent for sent, back in seen.exchanges[job.process] if back <= at), default=0.0)
        answered = [each for each in entered if each.added <= sent or not _asks_first(each)]
        leaving = [each for each in seen.jobs if each.process is job.process and each.ended == at]
        left = sorted([*waiting, *(each for each in leaving if each is not job)], key=_place)
        # Several are refused at once, each a moment after the other where steps take time.
        soon = at + (_STEPS if job.process.clock.goes_on else 0.0)
        staying = [each for each in waiting if each.outcome != "SlotTimeout" or each.ended > soon]
        # One that is tried again comes after a pause, whose timer may be late.
        paused = self.ahead(job, at, _PAUSE + self._lateness[job.process.name])
        queues = _distinct([waiting, entered, answered, left, staying, paused])
        for own, ahead in product(self._possible(job.process, at), queues):
            found += [self._outlook(job, at, state, own, ahead) for state in states if state is not None]
            if known is not None:
                last = self._outlook(job, at, known, own, ahead)
                if by_last or last.is_owned or at - heard <= _FRESH:
                    # All that it knows of the clock is that it has gone on from there. Where windows have
                    # cells, a moment can decide in which cell a slot lies, and so how long it counts.
                    least = known.last_now + round((at - heard) * 1e6)
                    found += [last, self._outlook(job, at, known, own, ahead, least)]
        return found

    def _possible(self, process: Process, at: float) -> list[list[Slot]]:
        """The tickets that a process has: all, or those of its present row of jobs, if it forgot the others.

        It forgets tickets that it can't give back, because others have later ones, when nobody waits. Slots
        that were too cheap for a job that waited when they were granted may have been skipped.
        """
        own, seen = self.owned(process, at), self._seen
        jobs = [job for job in seen.jobs if job.process is process and job.added <= at]
        ends = [(job.starts[0].at if job.starts else job.ended) for job in jobs]
        ends += [since for job in jobs for since, _ in job.in_hand]
        idle = max(
            (
                end
                for end in ends
                if end <= at and not any(waits(job, end) and not _is_in_hand(job, end) for job in jobs)
            ),
            default=0.0,
        )
        record = next((each.state for _, _, each in reversed(seen.answers[process]) if each.state), None)
        name = seen.trace.name(record.generation) if record else ""
        kept = [slot for slot in own if max(seen.issues[name, slot.ticket], default=0.0) > idle]
        coming = [slot for slot in kept if not self._is_over(name, slot, at)]
        last = record.current if record else 0
        behind = [slot for slot in coming if slot.ticket > last or (name, slot.ticket) in seen.grants]
        fit = [slot for slot in coming if not self._was_cheap(process, name, slot, at, record)]
        clear = [slot for slot in coming if not self._is_overrun(process, name, slot, at)]
        return _distinct([own, kept, coming, behind, fit, clear])

    def _is_over(self, record: str, slot: Slot, at: float) -> bool:
        """Whether a granted slot was over by an instant, so that it is granted late, or another one taken."""
        grants = self._seen.grants.get((record, slot.ticket), [])
        return bool(grants) and grants[-1].slot + grants[-1].latest < at

    def _is_overrun(self, process: Process, record: str, slot: Slot, at: float) -> bool:
        """Whether a late start in an earlier slot of a process left no room for this one by an instant.

        A thread that has an earlier slot in hand may begin in it at any moment.
        """
        grants = self._seen.grants.get((record, slot.ticket), [])
        began = [
            start.at
            for start in self._seen.starts
            if start.job.process is process and start.slot < (record, slot.ticket) and start.at <= at
            if start.record == record
        ]
        if grants and grants[-1].heard is not None:
            began += [
                min(until, at)
                for job in self._seen.jobs
                if job.process is process and slot.ticket not in job.came_late
                for since, until in job.in_hand
                if grants[-1].heard <= since <= at
            ]
        if not grants or not began:
            return False
        room = grants[-1].slot + grants[-1].latest - max(began)
        return room < grants[-1].settings.interval / 1e6

    def _was_cheap(self, process: Process, name: str, slot: Slot, at: float, state: State | None) -> bool:
        """Whether a granted slot was too cheap for a job that waited for one since."""
        grants = self._seen.grants.get((name, slot.ticket), [])
        if state is None or not grants or grants[-1].heard is None:
            return False
        return any(
            job.process is process and not _fits(job, slot, state)
            for job in self._seen.jobs
            if job.added <= at and (job.starts[0].at if job.starts else job.ended) >= grants[-1].heard
        )

    def known(self, job: ObservedJob, at: float) -> Outlook | None:
        """When a job's slot comes at the earliest by the last answer to its process; None: there was none."""
        _, state = self.heard(job.process, at)
        if state is None:
            return None
        ahead = _surely(self.ahead(job, at), job, at)
        found = [self._outlook(job, at, state, own, ahead) for own in self._possible(job.process, at)]
        return min(found)._replace(is_owned=all(each.is_owned for each in found))

    def behind_own(self, job: ObservedJob, at: float) -> Outlook | None:
        """When a slot behind those of a job's own process comes at the earliest, if it is in need of one.

        None: it has no tickets, or a spare one, or not all jobs are alike.
        """
        _, state = self.heard(job.process, at)
        own, ahead = min(self._possible(job.process, at), key=len), _surely(self.ahead(job, at), job, at)
        others = [each for each in self._seen.jobs if each.process is job.process]
        if any(each.plan.cost > 1 or each.plan.units or each.plan.priority for each in others):
            return None
        if state is None or state.held_since is not None or not own or len(ahead) < len(own):
            return None
        due = own[-1].due + (1 + len(ahead) - len(own)) * state.settings.interval + state.held_total
        return Outlook(self._true(at, self._reading(at), due), is_open=False, is_owned=True)

    def heard(self, process: Process, at: float) -> tuple[float, State | None]:
        """The last record that a process was shown, and when."""
        for when, _, answer in reversed(self._seen.answers[process]):
            if when <= at and not answer.refused:
                return when, answer.state
        return 0.0, None

    def owned(self, process: Process, at: float) -> list[Slot]:
        """The tickets that a process knew to have, and had not used or given back, in their order."""
        return [slot for slot, is_invalid in self._had(process, at) if not is_invalid]

    def _had(self, process: Process, at: float) -> list[tuple[Slot, bool]]:
        seen, own, record = self._seen, dict[int, Slot](), ""
        invalid = set[int]()
        for when, _, answer in seen.answers[process]:
            if when > at or answer.state is None or answer.refused:
                continue
            if answer.state.generation != record:
                own, record = {}, answer.state.generation
            for slot in answer.taken:
                own[slot.ticket] = slot
            own.update({ticket: placed(answer.state, own[ticket]) for ticket in own.keys() & answer.granted})
            for ticket in answer.missed:
                own.pop(ticket, None)
            revoked, name = answer.state.revoked_through, seen.trace.name(record)
            invalid |= {
                ticket
                for ticket in own
                if ticket <= revoked
                and not any(grant.heard is not None for grant in seen.grants.get((name, ticket), ()))
            }
        for when, command in seen.commands[process]:
            if when < at and isinstance(command, Advance):
                for slot in command.release:
                    own.pop(slot.ticket, None)
        name = seen.trace.name(record) if record else ""
        for start in seen.starts:
            if start.record == name and start.at <= at:
                own.pop(start.ticket, None)
        return [(own[ticket], ticket in invalid) for ticket in sorted(own)]

    def ahead(self, job: ObservedJob, at: float, pause: float = 0.0) -> list[ObservedJob]:
        """The jobs of the same process that wait before a job, if its own first pause was this long."""
        own, place = self._seen.jobs, _place(job)
        if any(start.at <= at for start in job.starts):
            place = place[0], len(own)  # it is tried again, behind the others
        return sorted(
            (
                each
                for each in own
                if each.process is job.process
                and waits(each, at)
                and (
                    (_place(each) < place and _came(each, at) <= _until(each, job, at, pause))
                    or _is_in_hand(each, at)
                )
            ),
            key=lambda each: (not _is_in_hand(each, at), *_place(each)),
        )

    def _outlook(
        self,
        job: ObservedJob,
        at: float,
        state: State,
        own: list[Slot],
        ahead: list[ObservedJob],
        guess: int | None = None,
    ) -> Outlook:
        """`guess`: what its process takes for the reading of the store's clock. None: it knows."""
        reading, soonest = self._reading(at), at
        state, now, is_open = self._opened(state, reading if guess is None else min(guess, reading))
        soonest = max(soonest, self._true(at, reading, now))
        if is_open:  # its end is heard of, and then a grant requested
            sent = [each for when, each in self._seen.commands[job.process] if when <= at]
            notice = max([0, *(each.notice for each in sent if isinstance(each, Advance))]) / 1e6
            soonest += 2 * max(2 * self._slowest(job.process, at), notice) + _REACTION
        slots = iter(own)
        without: list[ObservedJob] = []
        slot: Slot | None = None
        for each in (*ahead, job):
            slot = next((slot for slot in slots if _fits(each, slot, state)), None)
            if slot is None:
                without.append(each)
        if slot is not None:
            begins = self._true(at, reading, slot.due + state.held_total)
            return Outlook(max(soonest, begins), is_open, is_owned=True)
        due = self._due(state, now, tuple([(each.plan.cost, _units(each, state)) for each in without]))
        return Outlook(max(soonest, self._true(at, reading, due + state.held_total)), is_open, is_owned=False)

    def _opened(self, state: State, now: int) -> Opened:
        if (id(state), now) not in self._openings:
            self._openings[id(state), now] = state, _opened(state, now)
        return self._openings[id(state), now][1]

    def _due(self, state: State, now: int, wants: Wants) -> int:
        """On the queue's clock, the last of the slots that jobs would get if they asked for them at once."""
        if (id(state), now, wants) not in self._issued:
            costs, units = zip(*wants, strict=True)
            take = Advance(generation=state.generation, take=len(wants), costs=costs, units=units)
            after, answer = apply(state, take, now)
            assert after is not None
            due = answer.taken[-1].due if answer.count == len(wants) else FOREVER
            self._issued[id(state), now, wants] = state, due
        return self._issued[id(state), now, wants][1]

    def _slowest(self, process: Process, at: float) -> float:
        had = self._seen.exchanges[process]
        return max([0.0, *(back - sent for sent, back in had if back <= at)])

    def _reading(self, at: float) -> int:
        """What the store's clock read at an instant."""
        when, reading = next((then, now) for then, now, _ in reversed(self._seen.history) if then <= at)
        return reading + round((at - when) * 1e6 * self._rate)

    def _true(self, at: float, reading: int, instant: int) -> float:
        """The true time at which the store's clock reads `instant`."""
        return at + (instant - reading) / 1e6 / self._rate


def _distinct(lists: list[list[T]]) -> list[list[T]]:
    """Lists without those that repeat an earlier one."""
    return [each for place, each in enumerate(lists) if each not in lists[:place]]


def _asks_first(job: ObservedJob) -> bool:
    return job.plan.timeout is not None and job.plan.way != "add"


def waits(job: ObservedJob, at: float) -> bool:
    """Whether a job waits for a slot at an instant; a job between two attempts counts."""
    if job.added > at or (job.outcome is not None and job.ended <= at):
        return False
    began = [start for start in job.starts if start.at <= at]
    return not began or (began[-1].ended <= at and len(began) <= min(job.plan.fails, job.plan.retries))


def _came(job: ObservedJob, at: float, pause: float = 0.0) -> float:
    """When a job began to wait: if it is tried again, after a pause that doubles with each failed attempt."""
    began = [start.ended for start in job.starts if start.at <= at]
    return max(began) + pause * 2 ** (len(began) - 1) if began else job.added


def _until(each: ObservedJob, job: ObservedJob, at: float, pause: float = 0.0) -> float:
    """By when another job must have come to be ahead of a job: before it, unless it is more urgent."""
    return at if each.plan.priority > job.plan.priority else min(at, _came(job, at, pause))


def _surely(ahead: list[ObservedJob], job: ObservedJob, at: float) -> list[ObservedJob]:
    """Those of the jobs ahead that are there even if their pauses are as long as they may be."""
    return [
        each for each in ahead if _came(each, at, _PAUSE) <= _until(each, job, at) or _is_in_hand(each, at)
    ]


def _is_in_hand(job: ObservedJob, at: float) -> bool:
    """Whether the thread of a job has its slot already, and nobody can overtake it."""
    return any(since <= at <= until for since, until in job.in_hand)


def _place(job: ObservedJob) -> tuple[int, int]:
    return -job.plan.priority, job.number


def _opened(state: State, now: int) -> Opened:
    """The record at the end of a hold, and when that is: at once if nobody knows when."""
    state = apply(state, Inspect(), now)[1].state or state
    if state.held_since is None:
        return state, now, False
    if not state.full and state.held_until < FOREVER:
        return apply(state, Inspect(), state.held_until)[1].state or state, state.held_until, False
    if state.held_until < FOREVER:
        now = max(now, state.held_until)  # jobs may end before, but not the pause
    held = state.held_total + now - state.held_since
    return replace(state, running={}, held_until=0, held_since=None, held_total=held), now, True


def _units(job: ObservedJob, state: State) -> Units:
    """What a job takes of each limit of a record."""
    limits = state.settings.limits
    return tuple(
        [job.plan.cost if each.unit == _STARTS else job.plan.units.get(each.unit, 0) for each in limits]
    )


def _fits(job: ObservedJob, slot: Slot, state: State) -> bool:
    if slot.cost < job.plan.cost:
        return False
    takes = _units(job, state)
    return not job.plan.units or (bool(slot.units) and all(map(int.__ge__, slot.units, takes)))

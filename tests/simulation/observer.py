"""Records what happens in a simulated world, in true time: the facts for the judges, and the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    Configure,
    Finish,
    Hold,
    Inspect,
    Reclaim,
    Resume,
    State,
)
from simulation.facts import Facts, Grant, Miss, ObservedJob, Refusal, Start, Violation, Warned
from simulation.granted import granted_slots, slots_that_came_sooner
from simulation.loop import Process
from simulation.plans import PlannedJob
from simulation.trace import Trace

_SITS_OUT: Final = 29.0
"""Seconds after which a held process polls the store on its own, whether or not a wake-up comes."""


class Observer(Facts):
    """Records all events of one schedule.

    Args:
        time: returns the true time in seconds.
        rate: how fast the store's clock runs; 1: at the true rate.
    """

    def __init__(self, time: Callable[[], float], rate: float = 1.0) -> None:
        super().__init__()
        self.time = time
        self.rate = rate
        self.store: Callable[[], int] = lambda: 0
        """Returns the reading of the store's clock."""
        self.trace = Trace()
        self.late = 0
        """How many slots were granted late."""
        self._waiting: set[ObservedJob] = set()
        self._unaware: list[Command] = []  # sent by a process that did not know the record yet
        self._ticked = 0.0
        self._pace: tuple[bool, int] | None = None
        self._in_row = 0
        self._under_way: Counter[Process] = Counter()
        self._held: dict[Process, float] = {}  # since when each process believes that the queue is held
        self._late: list[tuple[float, Command]] = []  # late grants that the store has not lost
        self._refunds: list[Command] = []  # commands that gave units of limits back
        self._granted: dict[int, tuple[Answer, list[Grant]]] = {}  # by the identity of their answers
        self._names: dict[Process, str | None] = {}  # the name of the record that each process saw last

    # --- what happens -------------------------------------------------------------------------------

    def say(self, who: str, what: str, *more: object) -> None:
        """Add a line to the trace."""
        self.trace.add(self.time(), who, what, *more)

    def violated(self, what: str, at: float | None = None) -> None:
        """Record a broken promise."""
        self.violations.append(Violation(self.time() if at is None else at, what))

    def added(self, process: Process, plan: PlannedJob) -> ObservedJob:
        """A job is about to be added to the queue."""
        self._tick()
        self._in_row = 0
        job = ObservedJob(number=len(self.jobs), process=process, plan=plan, added=self.time())
        self.jobs.append(job)
        self._waiting.add(job)
        self.say(process.name, "adds", job.number, plan.way, plan.priority, plan.cost)
        return job

    def started(self, job: ObservedJob, ticket: int, generation: str, due: float) -> None:
        """A job's first instruction is about to run; `due` is the slot that the job was given."""
        self._tick()
        self._in_row = 0
        self._waiting.discard(job)
        key = self.trace.name(generation)
        start = Start(
            at=self.time(),
            job=job,
            ticket=ticket,
            record=key,
            grants=[grant for grant in self.grants.get((key, ticket), []) if grant.heard is not None],
            since=self.store() / 1e6 - due,
        )
        job.starts.append(start)
        self.starts.append(start)
        self.say(job.process.name, "starts", job.number, ticket, key)

    def stopped(self, job: ObservedJob) -> None:
        """A job's function ended."""
        job.starts[-1].ended = self.time()

    def ended(self, job: ObservedJob, outcome: str) -> None:
        """A job ended for its caller."""
        self._tick()
        self._waiting.discard(job)
        if job.outcome is not None:
            self.violated(f"job {job.number} ended twice: {job.outcome}, then {outcome}")
        job.outcome, job.ended = outcome, self.time()
        self.say(job.process.name, "ends", job.number, outcome)

    def refused(self, job: ObservedJob, after: float | None, text: str) -> None:
        """A job was told that it won't begin in time, and when one that is added now could begin."""
        self.refusals.append(Refusal(at=self.time(), job=job, after=after, text=text))

    def warned(self, process: Process, text: str) -> None:
        """A process logged a warning."""
        self.warnings.append(Warned(at=self.time(), process=process, text=text))
        self.say(process.name, "warns", text)

    def quoted(self, process: Process, after: float | None) -> None:
        """A process was answered when a job added now would begin."""
        plan = PlannedJob(at=self.time(), way="quote")
        job = ObservedJob(number=10**9, process=process, plan=plan, added=self.time())
        self.quotes.append(Refusal(at=self.time(), job=job, after=after))

    def dies(self, process: Process) -> None:
        """A process died."""
        self._tick()
        self.died[process] = self.time()
        self._waiting = {job for job in self._waiting if job.process is not process}
        self.say(process.name, "dies")

    def sent(self, process: Process, command: Command, *, lost: bool) -> None:
        """A process sent a command."""
        self.calls += 1
        if process in self.shut and isinstance(command, Advance):
            self.violated(f"{process.name} has closed its handle, and asks {command}")
        if process not in self.known:
            self._unaware.append(command)
        self.asked[process] = self.time()
        self.commands[process].append((self.time(), command))
        self.tried(process)
        self._count(process, command, lost=lost)
        self.say(process.name, "asks", command, "(lost)" if lost else "")

    def tried(self, process: Process) -> None:
        """A process tries to send a request, perhaps without a connection to the store."""
        self.questions[process].append(self.time())
        self._under_way[process] += 1

    def answered(self, process: Process, command: Command, answer: Answer, sent: float) -> None:
        """A process received an answer."""
        self.exchanges[process].append((sent, self.time()))
        self.answers[process].append((self.time(), command, answer))
        for grant in self._granted.pop(id(answer), (answer, []))[1]:
            grant.heard = self.time()
        stored = answer.state is not None and not answer.refused
        if not answer.refused:
            name = None if answer.state is None else answer.state.generation
            if answer.healed or (self._names.get(process) or name) != name:
                self.shown.add(process)
            self._names[process] = name
        if (
            answer.state is not None
            and stored
            and (isinstance(command, Advance) or process not in self.known)
        ):
            self.known[process] = (self.time(), answer.state)
        if stored and not isinstance(command, Inspect):
            self.attached[process].append(self.time())
        self._under_way[process] -= 1
        is_held = answer.state is not None and answer.state.held_since is not None
        if is_held and isinstance(command, Advance):
            self._held.setdefault(process, self.time())
        elif isinstance(command, Advance):
            self._held.pop(process, None)
        elif not is_held:
            self.woken(process)
        self.say(process.name, "hears")

    def woken(self, process: Process) -> None:
        """A process learned that the queue is no longer held."""
        since = self._held.get(process)
        if since is not None and self.time() - since < _SITS_OUT and not self._under_way[process]:
            self.released.append((self.time(), process))

    def stalled(self, process: Process, seconds: float) -> None:
        """A process stops for a while."""
        self.stalls.append((self.time(), self.time() + seconds, process))
        self.say(process.name, "stalls", f"{seconds:.6f} s")

    def failed(self, process: Process, command: Command) -> None:
        """A process gave up a request: no answer came in time."""
        self._in_row = 0
        self._under_way[process] = max(0, self._under_way[process] - 1)
        self._held.pop(process, None)  # it waits before the next attempt
        self.failures[process].append(self.time())
        if isinstance(command, Advance):
            self.unanswered[process].append(self.time())
        if isinstance(command, Finish):
            self.unrenewed[process].append(self.time())
        self.say(process.name, "gives up")

    def withdrew(self, process: Process, sent: float) -> None:
        """The sender of a request was cancelled while it waited for the answer."""
        self._under_way[process] = max(0, self._under_way[process] - 1)
        self.withdrawn[process].append((sent, self.time()))

    def stepped(
        self, process: Process, command: Command, before: State | None, after: State | None, answer: Answer
    ) -> None:
        """The store applied a command."""
        self._tick()
        self.history.append((self.time(), answer.now, after))
        state = answer.state
        if state is not None:
            self._pace = (state.held_since is not None, state.settings.interval)
        if state is None or state.held_since is not None or isinstance(command, Configure | Reclaim | Hold):
            self._in_row = 0
        if before is not None and after is not None and before.generation == after.generation:
            if after.late_total > before.late_total and not answer.healed:
                self._granted_late(process, command, before, after)
            for counter in ("ticket", "current", "revoked_through", "late_total"):
                if getattr(after, counter) < getattr(before, counter):
                    self.violated(f"{counter} went back from {getattr(before, counter)}")
        if before is None and after is not None:
            knew = not after.settings.ephemeral and not any(command is other for other in self._unaware)
            if knew and answer.first is not None and answer.first.due < answer.now + after.settings.interval:
                self.violated(f"{process.name} knew of a record, and created one without a quiet interval")
        if state is not None and not answer.refused:
            self._note(process, command, answer, state)
        self.say("store", "does", process.name, type(command).__name__, answer)

    def _note(self, process: Process, command: Command, answer: Answer, state: State) -> None:
        now = self.time()
        key = self.trace.name(state.generation)
        clock = state.clock(answer.now) + state.late_total  # the clock goes back only for late grants
        if not isinstance(command, Inspect):  # an inspection stores nothing, not even the time
            if clock < self.clocks.get(key, clock):
                self.violated(f"the queue's clock went back by {self.clocks[key] - clock} us")
            self.clocks[key] = clock
            self.revoked[key] = state.revoked_through
            self.readings[key].append((now, clock / 1e6))
            self._note_limit(key, state, answer.now)
        for slot in (*slots_that_came_sooner(command, answer), *answer.taken):
            self.issues[key, slot.ticket].append(now)
            self.places[key, slot.ticket].append((now, slot.due + state.held_total))
            self.own[process][key, slot.ticket] = now
            self.ahead[key, slot.ticket] = (slot.due + state.late_total - clock) / 1e6
            self.issued[key, slot.ticket] = state.settings
            self.dues[key, slot.ticket] = slot.due
            self.first_dues.setdefault((key, slot.ticket), slot.due)
            self.taken[process][key, slot.ticket] = slot.cost
        if isinstance(command, Advance) and command.generation == state.generation:
            self._advanced(process, command, answer, key, state)
        heard, known = self.known.get(process, (now, state))
        unaware = known.held_total != state.held_total or any(at > heard for at, _ in self.steps)
        notice = command.notice / 1e6 if isinstance(command, Advance) else 0.0
        granted = [*granted_slots(command, answer), *answer.taken[: answer.begun]]
        grants = [
            Grant(
                at=now,
                ticket=slot.ticket,
                cost=slot.cost,
                process=process,
                settings=state.settings,
                slot=now + (slot.due + state.held_total - answer.now) / 1e6 / self.rate,
                at_once=answer.at_once and place == 0,
                latest=(state.tolerance + state.credit) / 1e6,
                notice=notice,
                unaware=unaware,
            )
            for place, slot in enumerate(granted)
        ]
        for grant in grants:
            self.grants[key, grant.ticket].append(grant)
        if grants:
            self._granted[id(answer)] = answer, grants
        error = state.error / 1e6
        self.tolerances[key] = min(self.tolerances.get(key, 1e9), state.tolerance / 1e6)
        least = min(self.tolerances.values())  # a shard goes by the record that it has heard of
        if error != next((known for _, record, known, _ in reversed(self.errors) if record == key), 0.0):
            self.errors.append((now, key, error, least))
            stored = isinstance(command, Advance) and command.error == state.error
            self.reports.append((self.asked.get(process, now), process if stored else None))
        self._note_verb(command)
        self._note_hold(state, answer.now)

    def _note_verb(self, command: Command) -> None:
        now = self.time()
        if isinstance(command, Hold):
            self.holds.append((now, command.length / 1e6 if command.length < FOREVER else float("inf")))
        elif isinstance(command, Resume):
            self.resumes.append(now)
        elif isinstance(command, Reclaim):
            self.reclaims += 1
        elif isinstance(command, Configure):
            self.changes.append(now)

    def _note_hold(self, state: State, store: int) -> None:
        """A hold that ends on its own is never longer than requested, whatever clocks do."""
        if 0 < state.held_until < FOREVER:
            most = max((length for _, length in self.holds if length < float("inf")), default=0.0)
            if (left := (state.held_until - store) / 1e6) > most + 1e-6:
                self.violated(f"the queue is to be held for {left:.6f} s more, {most:.6f} s were asked for")

    def _note_limit(self, key: str, state: State, store: int) -> None:
        for ticket in state.running:
            self.leased[key, ticket] = self.time()
        most, limits = state.settings.max_running, self.limits[key]
        if not limits or limits[-1][1] != most:
            limits.append((self.time(), most))
        longest = max((until - store for until in state.running.values()), default=0) / 1e6
        if not self.leases or longest > self.leases[-1][1]:
            self.leases.append((self.time(), longest))

    def _advanced(self, process: Process, command: Advance, answer: Answer, key: str, state: State) -> None:
        mark = command.high_water_mark
        if mark is not None and (state.ticket < mark.ticket or state.late_total < mark.late_total):
            self.violated(f"{process.name} knew {mark} of {key}, and the record ignored that")
        for settled in command.settled:
            if max(settled.more, default=0) > 0:
                self.settled.setdefault((key, settled.due), self.time())
        if any(min(settled.more, default=0) < 0 for settled in command.settled):
            if any(command is other for other in self._refunds):
                self.repeated = min(self.repeated, self.time())
            self._refunds.append(command)
        for slot in command.release:
            self.taken[process].pop((key, slot.ticket), None)
        for slot in (*command.slots, *command.release):
            if (key, slot.ticket) not in self.issues:
                self.violated(f"{process.name} has ticket {slot.ticket} of {key}, which never issued it")
        for ticket in answer.missed:
            self.misses.append(
                Miss(
                    at=self.time(),
                    process=process,
                    slot=(key, ticket),
                    revoked=ticket <= state.revoked_through,
                )
            )

    def lost(self, age: float | None, *, everything: bool) -> None:
        """The store lost writes."""
        self._in_row = 0
        self.losses.append(self.time())
        since = float("-inf") if age is None else self.time() - age
        self._late = [(at, command) for at, command in self._late if at <= since]
        self.clocks.clear()
        self.revoked_at[self.time()] = self.revoked
        self.revoked = {}
        if not everything:
            self.failovers.append(self.time())
        self.say("store", "loses", "everything" if age is None else f"{age:.6f} s")

    def clock_set(self, seconds: float) -> None:
        """The store's clock was stepped."""
        self._in_row = 0
        self.steps.append((self.time(), seconds))
        self.say("store", "steps its clock", f"{seconds:+.6f} s")

    # --- inside -------------------------------------------------------------------------------------

    def _granted_late(self, process: Process, command: Command, before: State, after: State) -> None:
        assert isinstance(command, Advance)
        slot = command.slots[0]
        elapsed = after.last_now - before.held_total - slot.due - after.tolerance - after.credit
        if (
            after.late_total - before.late_total
            > max(0, before.last_now - after.last_now) + elapsed + command.notice
        ):
            self.violated(
                f"ticket {slot.ticket} of {process.name} was late, and moved others by more than that"
            )
        if any(command is other for _, other in self._late):
            self.violated(f"a copy of a request of {process.name} set the queue's clock back once more")
        self.late += 1
        self._late.append((self.time(), command))

    def _count(self, process: Process, command: Command, *, lost: bool) -> None:
        """Count the consecutive requests of the only process with waiting jobs."""
        if lost or any(job.process is not process for job in self._waiting):
            self._in_row = 0
        elif self._waiting and not self._looks(process, command) and isinstance(command, Advance | Inspect):
            self._in_row += 1
            self.alone.append((self.time(), process, self._in_row))

    def _looks(self, process: Process, command: Command) -> bool:
        """Whether it only asks whether a slot that waits for a window may come sooner."""
        _, state = self.known.get(process, (0.0, None))
        if state is None or not (state.settings.limits and isinstance(command, Advance) and command.slots):
            return False
        return not command.take and command.slots[0].due > state.clock(self.store()) + (command.ahead or 0)

    def _tick(self) -> None:
        now = self.time()
        if self._waiting and self._pace is not None and not self._pace[0]:
            self.wanted += (now - self._ticked) * 1e6 / self._pace[1]
        self._ticked = now

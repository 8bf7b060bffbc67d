"""Writes down what happens in a simulated world, by true time: what the judges go by, and the trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    Configure,
    Hold,
    Inspect,
    Reclaim,
    Resume,
    Settings,
    State,
)
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.mixes import PlannedJob
from intervalq.testing.simulation.trace import Trace


@dataclass(slots=True, kw_only=True, eq=False)
class ObservedJob:
    """A job, and what became of it."""

    number: int
    process: Process
    plan: PlannedJob
    added: float
    starts: list[Start] = field(default_factory=list)
    cancelled: bool = False
    """Its caller wanted no more of it."""
    outcome: str | None = None
    ended: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """The first instruction of a job. `grants` are the steps that told its ticket to go, until then."""

    at: float
    job: ObservedJob
    ticket: int
    record: str
    """Which record the ticket is of."""
    grants: list[Grant]
    ended: float = float("inf")
    """When the job's function ended."""

    @property
    def slot(self) -> tuple[str, int]:
        """Which ticket of which record."""
        return self.record, self.ticket


@dataclass(slots=True, kw_only=True, eq=False)
class Grant:
    """A step of the store that told a ticket's owner to go."""

    at: float
    settings: Settings
    notice: float
    """How long its owner said that a job needs to begin, in seconds."""
    unaware: bool
    """Its owner had not heard of a hold or a step of the clock that moved the slot, and asked too early."""


@dataclass(slots=True, kw_only=True, eq=False)
class Miss:
    """A ticket that was asked about too late, or that was void."""

    at: float
    slot: tuple[str, int]
    void: bool


@dataclass(slots=True)
class Violation:
    """A promise that was broken."""

    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.at:11.6f}  {self.what}"


class Observer:
    """See the module. `time` gives the true time in seconds."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.time = time
        self.trace = Trace()
        self.jobs: list[ObservedJob] = []
        self.starts: list[Start] = []
        self.grants: dict[tuple[str, int], list[Grant]] = defaultdict(list)
        self.issues: dict[tuple[str, int], list[float]] = defaultdict(list)
        """When each ticket was issued: more than once only when the store forgot it."""
        self.ahead: dict[tuple[str, int], float] = {}
        """How far ahead its slot was then, in seconds."""
        self.dues: dict[tuple[str, int], int] = {}
        """Its slot."""
        self.clocks: dict[str, int] = {}
        """What the clock of each record's queue read last."""
        self.exchanges: dict[Process, list[tuple[float, float]]] = defaultdict(list)
        self.known: dict[Process, tuple[float, State]] = {}
        """When a process last heard of its slots, and what the record was then."""
        self.attached: dict[Process, list[float]] = defaultdict(list)
        """When a process heard of the record."""
        self.failures: dict[Process, list[float]] = defaultdict(list)
        """When a process could not reach the store."""
        self.taken: dict[Process, dict[tuple[str, int], int]] = defaultdict(dict)
        """The tickets that a process got, less those that it gave back, and how many slots each has."""
        self.misses: list[Miss] = []
        self.made: list[tuple[float, bool]] = []
        """When a record was made, and whether its maker knew of an earlier one."""
        self.holds: list[tuple[float, float]] = []
        """When each began and how long it was meant to be, in seconds."""
        self.resumes: list[float] = []
        self.changes: list[float] = []
        """When the settings were changed."""
        self.steps: list[tuple[float, float]] = []
        """When the store's clock was stepped, and by how much."""
        self.losses: list[float] = []
        """When the store lost writes."""
        self.failovers: list[float] = []
        """When it fell back to an older copy that had the record."""
        self.died: dict[Process, float] = {}
        self.closed: dict[Process, float] = {}
        self.violations: list[Violation] = []
        self.calls = 0
        self.alone: list[tuple[float, Process, int]] = []
        """Questions of a process in which alone jobs wait, each with how many in a row it was."""
        self.wanted = 0.0
        """How many slots passed while jobs waited and the queue was not held."""
        self._waiting: set[ObservedJob] = set()
        self._ticked = 0.0
        self._pace: tuple[bool, int] | None = None
        self._in_row = 0
        self._late: list[Command] = []  # each was granted late

    @property
    def late(self) -> int:
        """How many slots were granted late."""
        return len(self._late)

    # --- what happens -------------------------------------------------------------------------------

    def say(self, who: str, what: str, *more: object) -> None:
        """Add a line to the trace."""
        self.trace.add(self.time(), who, what, *more)

    def violated(self, what: str, at: float | None = None) -> None:
        """A promise was broken."""
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

    def started(self, job: ObservedJob, ticket: int, generation: str) -> None:
        """A job's first instruction."""
        self._tick()
        self._in_row = 0
        self._waiting.discard(job)
        key = self.trace.name(generation)
        start = Start(
            at=self.time(),
            job=job,
            ticket=ticket,
            record=key,
            grants=list(self.grants.get((key, ticket), [])),
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

    def dies(self, process: Process) -> None:
        """A process is no more."""
        self._tick()
        self.died[process] = self.time()
        self._waiting = {job for job in self._waiting if job.process is not process}
        self.say(process.name, "dies")

    def sent(self, process: Process, command: Command, *, lost: bool) -> None:
        """A command is on its way."""
        self.calls += 1
        self._count(process, command, lost=lost)
        self.say(process.name, "asks", command, "(lost)" if lost else "")

    def answered(self, process: Process, command: Command, answer: Answer, sent: float) -> None:
        """An answer is taken in."""
        self.exchanges[process].append((sent, self.time()))
        told = answer.state is not None and not answer.refused
        if answer.state is not None and told and (isinstance(command, Advance) or process not in self.known):
            self.known[process] = (self.time(), answer.state)
        if told and not isinstance(command, Inspect):
            self.attached[process].append(self.time())
        self.say(process.name, "hears")

    def failed(self, process: Process) -> None:
        """No answer came."""
        self._in_row = 0
        self.failures[process].append(self.time())
        self.say(process.name, "gives up")

    def stepped(
        self, process: Process, command: Command, before: State | None, after: State | None, answer: Answer
    ) -> None:
        """The store did a step."""
        self._tick()
        state = answer.state
        if state is not None:
            self._pace = (state.held_since is not None, state.settings.interval)
        if state is None or state.held_since is not None or isinstance(command, Configure | Reclaim | Hold):
            self._in_row = 0
        if before is not None and after is not None and before.generation == after.generation:
            if after.late_total > before.late_total and not answer.healed:
                self._granted_late(process, command)
            for counter in ("ticket", "current", "revoked_through", "late_total"):
                if getattr(after, counter) < getattr(before, counter):
                    self.violated(f"{counter} went back from {getattr(before, counter)}")
        if before is None and after is not None:
            self.made.append((self.time(), process in self.known and not after.settings.ephemeral))
        if state is not None and not answer.refused:
            self._note(process, command, answer, state)
        self.say("store", "does", process.name, type(command).__name__, answer)

    def _note(self, process: Process, command: Command, answer: Answer, state: State) -> None:
        now = self.time()
        key = self.trace.name(state.generation)
        clock = state.clock(answer.now) + state.late_total  # it goes back for late grants only
        if not isinstance(command, Inspect):  # a look leaves nothing behind, not even when it was
            if clock < self.clocks.get(key, clock):
                self.violated(f"the queue's clock went back by {self.clocks[key] - clock} us")
            self.clocks[key] = clock
        for slot in answer.taken:
            self.issues[key, slot.ticket].append(now)
            self.ahead[key, slot.ticket] = (slot.due + state.late_total - clock) / 1e6
            self.dues[key, slot.ticket] = slot.due
            self.taken[process][key, slot.ticket] = slot.cost
        if isinstance(command, Advance) and command.generation == state.generation:
            self._advanced(process, command, answer, key, state)
        heard, known = self.known.get(process, (now, state))
        unaware = known.held_total != state.held_total or any(at > heard for at, _ in self.steps)
        notice = command.notice / 1e6 if isinstance(command, Advance) else 0.0
        begun = [slot.ticket for slot in answer.taken[: answer.begun]]
        for ticket in (*answer.granted, *begun):
            grant = Grant(at=now, settings=state.settings, notice=notice, unaware=unaware)
            self.grants[key, ticket].append(grant)
        if isinstance(command, Hold):
            self.holds.append((now, command.length / 1e6 if command.length < FOREVER else float("inf")))
        elif isinstance(command, Resume):
            self.resumes.append(now)
        elif isinstance(command, Configure):
            self.changes.append(now)

    def _advanced(self, process: Process, command: Advance, answer: Answer, key: str, state: State) -> None:
        mark = command.high_water_mark
        if mark is not None and (state.ticket < mark.ticket or state.late_total < mark.late_total):
            self.violated(f"{process.name} knew of {mark} of {key}, and was ignored")
        for slot in command.release:
            self.taken[process].pop((key, slot.ticket), None)
        for slot in (*command.slots, *command.release):
            if (key, slot.ticket) not in self.issues:
                self.violated(f"{process.name} has ticket {slot.ticket} of {key}, which never issued it")
        for ticket in answer.missed:
            self.misses.append(Miss(at=self.time(), slot=(key, ticket), void=ticket <= state.revoked_through))

    def lost(self, age: float | None, *, everything: bool) -> None:
        """The store lost writes."""
        self._in_row = 0
        self.losses.append(self.time())
        self.clocks.clear()
        if not everything:
            self.failovers.append(self.time())
        self.say("store", "loses", "everything" if age is None else f"{age:.6f} s")

    def clock_set(self, seconds: float) -> None:
        """The store's clock was stepped."""
        self._in_row = 0
        self.steps.append((self.time(), seconds))
        self.say("store", "steps its clock", f"{seconds:+.6f} s")

    # --- inside -------------------------------------------------------------------------------------

    def _granted_late(self, process: Process, command: Command) -> None:
        if any(command is other for other in self._late):
            self.violated(f"a copy of a question of {process.name} set the queue's clock back once more")
        self._late.append(command)

    def _count(self, process: Process, command: Command, *, lost: bool) -> None:
        """Count the questions of a process that has all the jobs that wait, with nothing in its way."""
        alone = all(job.process is process for job in self._waiting)
        if lost or not alone:
            self._in_row = 0
        elif self._waiting and isinstance(command, Advance | Inspect):
            self._in_row += 1
            self.alone.append((self.time(), process, self._in_row))

    def _tick(self) -> None:
        now = self.time()
        if self._waiting and self._pace is not None and not self._pace[0]:
            self.wanted += (now - self._ticked) * 1e6 / self._pace[1]
        self._ticked = now

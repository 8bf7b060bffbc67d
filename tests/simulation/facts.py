"""What was observed in a simulated world, in true time: plain data for the judges."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from intervalq.rules import Answer, Command, Settings, State
from simulation.loop import Process
from simulation.plans import PlannedJob


@dataclass(slots=True, kw_only=True, eq=False)
class ObservedJob:
    """A job and how it went."""

    number: int
    process: Process
    plan: PlannedJob
    added: float
    starts: list[Start] = field(default_factory=list)
    cancelled: bool = False
    """Whether its caller cancelled it."""
    outcome: str | None = None
    ended: float = 0.0
    came_late: list[int] = field(default_factory=list)
    """The tickets for whose slots its thread came too late; it waited for the slot or another one again."""
    handed: float = float("inf")
    """How long before its slot its thread was handed that, in seconds; negative: after it came."""
    in_hand: list[tuple[float, float]] = field(default_factory=list)
    """From when until when its thread had a slot and had not begun."""
    expects: int | None = None
    """The ticket that its caller was given when the job was queued."""
    told: float | None = None
    """When its slot comes, as the caller was told then, in seconds on the store's clock."""
    placed: float | None = None
    """When `add` returned to its caller; None: the job was not added by `add`, or `add` has not returned."""


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """The first instruction of a job. `grants` are those of its ticket that its process had received."""

    at: float
    job: ObservedJob
    ticket: int
    record: str
    """The record that issued the ticket."""
    grants: list[Grant]
    took: dict[str, int] = field(default_factory=dict)
    """What the job settled in the end, by unit; empty: its estimate counts."""
    since: float
    """The time since the slot that it was given, in seconds of the store's clock."""
    ended: float = float("inf")
    """When the job's function ended."""

    @property
    def slot(self) -> tuple[str, int]:
        """The record and the ticket."""
        return self.record, self.ticket


@dataclass(slots=True, kw_only=True, eq=False)
class Grant:
    """A step of the store that granted a ticket its slot. All of its instants are true time."""

    at: float
    ticket: int
    cost: int
    process: Process
    settings: Settings
    slot: float
    """The instant of the slot, computed from the store's clock and its rate at the grant."""
    at_once: bool
    """Whether the job may begin before its slot, as soon as the answer arrives."""
    latest: float
    """How long after the slot the job may begin, in seconds: tolerance and burst credit."""
    notice: float
    """The notice that its process gave: the time that a job needs to begin, in seconds."""
    unaware: bool
    """Whether its process requested it too early, not knowing of a hold or step that moved the slot."""
    heard: float | None = None
    """When its process received it; None: never."""

    @property
    def opens(self) -> float:
        """When the job may begin at the earliest."""
        return min(self.at, self.slot) if self.at_once else self.slot


@dataclass(slots=True, kw_only=True, eq=False)
class Miss:
    """A ticket whose grant was requested too late, or that was revoked."""

    at: float
    process: Process
    slot: tuple[str, int]
    revoked: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Refusal:
    """What a caller was answered about when a job added now could begin: by a refusal, or by a quote."""

    at: float
    job: ObservedJob
    after: float | None
    """The seconds; None: unknown."""
    text: str = ""
    """The error's text."""

    def added_now(self) -> ObservedJob:
        """A job like the refused one that would be added now."""
        return replace(self.job, number=10**9, added=self.at, starts=[], outcome=None)


@dataclass(slots=True, kw_only=True, eq=False)
class Warned:
    """A warning that a process logged about its queue or its store."""

    at: float
    process: Process
    text: str


@dataclass(slots=True, kw_only=True, eq=False)
class Account:
    """What a handle says at the end of what it did, as `inspect()` shows it."""

    at: float
    begun: int
    given_up: int
    late: int
    calls: int
    regressions: int
    clock: float
    """By how much it misjudges the store's clock, in seconds."""


@dataclass(slots=True)
class Violation:
    """A promise that was broken."""

    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.at:11.6f}  {self.what}"


@dataclass(kw_only=True, eq=False)
class Facts:
    """All facts of one schedule. Instants are true time in seconds unless stated otherwise."""

    jobs: list[ObservedJob] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    grants: dict[tuple[str, int], list[Grant]] = field(default_factory=lambda: defaultdict(list))
    errors: list[tuple[float, str, float, float]] = field(default_factory=list)
    """Each change of a record's error: the instant, the record, by how much shards may be wrong about the
    store's clock, and the smallest tolerance of any record so far, both in seconds."""
    reports: list[tuple[float, Process | None]] = field(default_factory=list)
    """For each item of `errors`: when the request was sent, and by which process."""
    asked: dict[Process, float] = field(default_factory=dict)
    """When each process last sent a request."""
    tolerances: dict[str, float] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    """The highest revoked ticket of each record."""
    revoked_at: dict[float, dict[str, int]] = field(default_factory=dict)
    """`revoked` at each loss of writes, by the instant of the loss."""
    readings: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Readings of the clock of each record's queue, without late grants, in seconds."""
    limits: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """Changes of `max_running` of each record; 0: none."""
    leases: list[tuple[float, float]] = field(default_factory=list)
    """The instants at which the longest lease so far grew, and its new length in seconds."""
    leased: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the store last counted each ticket's job as running."""
    blur: float = 0.0
    """By how much answers may misstate the store's clock, and say so, in seconds."""
    lossless: bool = False
    """Whether no message is lost or slow, wake-ups included."""
    subscribes: float = 0.0
    """How long it takes until a process that listens for wake-ups gets them, in seconds."""
    copies: bool = False
    """Whether requests may reach the store twice: a late copy renews the lease of a job that has ended."""
    overtaken: set[Process] = field(default_factory=set)
    """Processes whose renewal of leases reached the store after they had given it up: it may have renewed the
    lease of a job that had ended by then."""
    reclaims: int = 0
    issues: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each ticket was issued: more than once only if the store lost it."""
    places: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """When each ticket got a slot, or one that comes sooner, and that slot on the store's clock."""
    own: dict[Process, dict[tuple[str, int], float]] = field(default_factory=lambda: defaultdict(dict))
    """When each ticket was last issued to a process."""
    ahead: dict[tuple[str, int], float] = field(default_factory=dict)
    """How far ahead the slot of each ticket was when it was issued, in seconds."""
    issued: dict[tuple[str, int], Settings] = field(default_factory=dict)
    """The settings of the record when each ticket was last issued."""
    dues: dict[tuple[str, int], int] = field(default_factory=dict)
    """The slot of each ticket, on the queue's clock in microseconds."""
    first_dues: dict[tuple[str, int], int] = field(default_factory=dict)
    """The same, before any slot came sooner."""
    settled: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the store first learned that a job took more than its estimate, by record and slot."""
    repeated: float = float("inf")
    """When a request that gave units back reached the store for the second time."""
    clocks: dict[str, int] = field(default_factory=dict)
    """The last reading of the clock of each record's queue."""
    exchanges: dict[Process, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    withdrawn: dict[Process, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Requests whose sender was cancelled: when each was sent, and when it was cancelled."""
    answers: dict[Process, list[tuple[float, Command, Answer]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """When each process received an answer, the command that it had sent, and the answer."""
    commands: dict[Process, list[tuple[float, Command]]] = field(default_factory=lambda: defaultdict(list))
    """When each process sent which command."""
    history: list[tuple[float, int, State | None]] = field(default_factory=list)
    """The instant of each step of the store, the reading of its clock, and the record after it."""
    refusals: list[Refusal] = field(default_factory=list)
    """Jobs that ended with `SlotTimeout`."""
    warnings: list[Warned] = field(default_factory=list)
    quotes: list[Refusal] = field(default_factory=list)
    accounts: dict[Process, Account] = field(default_factory=dict)
    """Those of live processes."""
    known: dict[Process, tuple[float, State]] = field(default_factory=dict)
    """When each process last got an answer about its slots, and the record in it."""
    questions: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each process sent a request, or tried to."""
    released: list[tuple[float, Process]] = field(default_factory=list)
    """When a process that believed the queue to be held, and had no request in flight, learned otherwise."""
    stalls: list[tuple[float, float, Process]] = field(default_factory=list)
    """When a process stopped, when it went on, and which one."""
    attached: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each process received the record."""
    failures: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When requests of each process failed."""
    unanswered: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When those of type `Advance` failed, which are sent for waiting jobs."""
    unrenewed: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When those of type `Finish` failed, which renew the leases of running jobs."""
    taken: dict[Process, dict[tuple[str, int], int]] = field(default_factory=lambda: defaultdict(dict))
    """The tickets of each process that it has not given back, each with its number of slots."""
    misses: list[Miss] = field(default_factory=list)
    shown: set[Process] = field(default_factory=set)
    """Processes that got an answer which showed that the store had lost writes. If a request that created a
    record reaches the store again after the loss, the new record has the same name: only its counters
    differ."""
    holds: list[tuple[float, float]] = field(default_factory=list)
    """When each hold began, and its requested length in seconds."""
    resumes: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    """When the settings were changed."""
    steps: list[tuple[float, float]] = field(default_factory=list)
    """When the store's clock was stepped, and by how much."""
    losses: list[float] = field(default_factory=list)
    """When the store lost writes."""
    failovers: list[float] = field(default_factory=list)
    """Losses at which the store fell back to an older copy that had the record."""
    died: dict[Process, float] = field(default_factory=dict)
    closed: dict[Process, float] = field(default_factory=dict)
    released_at: dict[Process, float] = field(default_factory=dict)
    """When a handle that kept its jobs was started."""
    shut: dict[Process, float] = field(default_factory=dict)
    """When the closing of a handle returned."""
    drains: dict[Process, bool] = field(default_factory=dict)
    """For each closed handle: whether it was to start the jobs that waited."""
    exited: dict[Process, float] = field(default_factory=dict)
    """When a process ended after its handle was closed."""
    violations: list[Violation] = field(default_factory=list)
    calls: int = 0
    alone: list[tuple[float, Process, int]] = field(default_factory=list)
    """Requests of the only process with waiting jobs, each with its number in the series."""
    wanted: float = 0.0
    """How many slots there were while jobs waited and the queue was not held."""

    def may_run(self, start: Start) -> int:
        """How many jobs may run at a start: the limit at its first grant, or a larger one since then.

        A slot that is granted again keeps the lease of its first grant.
        """
        grant = start.grants[0]
        since = [most for at, most in self.limits[start.record] if grant.at < at <= start.at]
        return max([grant.settings.max_running, *since])

    @property
    def limited(self) -> bool:
        """Whether any record ever had `max_running`."""
        return any(most for limits in self.limits.values() for _, most in limits)

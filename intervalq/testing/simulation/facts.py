"""What is known of a simulated world, by true time: plain facts for the judges."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from intervalq.rules import Settings, State
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.plans import PlannedJob


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
    came_late: bool = False
    """Its thread came too late for a slot, and waited for another one."""
    expects: int | None = None
    """The ticket that its caller was told when the job was queued."""
    placed: float | None = None
    """When its caller was told; None: it isn't one that is."""


@dataclass(slots=True, kw_only=True, eq=False)
class Start:
    """The first instruction of a job. `grants` are those of its ticket that its process had heard of."""

    at: float
    job: ObservedJob
    ticket: int
    record: str
    """Which record the ticket is of."""
    grants: list[Grant]
    took: dict[str, int] = field(default_factory=dict)
    """What it said in the end that it had taken of windows; else it is what its job was to take."""
    since: float
    """How long ago its slot was, as it was told, by the store's clock in seconds."""
    ended: float = float("inf")
    """When the job's function ended."""

    @property
    def slot(self) -> tuple[str, int]:
        """Which ticket of which record."""
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
    """When the slot comes, by the store's clock and its rate as they were at the grant."""
    at_once: bool
    """The job may begin before the slot comes, as soon as the answer is there."""
    latest: float
    """Until when the job may begin by the settings, in seconds after the slot: tolerance and burst credit."""
    notice: float
    """How long its owner said that a job needs to begin, in seconds."""
    unaware: bool
    """Its owner had not heard of a hold or a step of the clock that moved the slot, and asked too early."""
    heard: float | None = None
    """When its owner heard of it; None: never."""

    @property
    def opens(self) -> float:
        """From when the job may begin."""
        return min(self.at, self.slot) if self.at_once else self.slot


@dataclass(slots=True, kw_only=True, eq=False)
class Miss:
    """A ticket that was asked about too late, or that was void."""

    at: float
    process: Process
    slot: tuple[str, int]
    void: bool


@dataclass(slots=True)
class Violation:
    """A promise that was broken."""

    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.at:11.6f}  {self.what}"


@dataclass(kw_only=True, eq=False)
class Facts:
    """All that was written down."""

    jobs: list[ObservedJob] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    grants: dict[tuple[str, int], list[Grant]] = field(default_factory=lambda: defaultdict(list))
    errors: list[tuple[float, str, float, float]] = field(default_factory=list)
    """When a record began to say by how much shards may be wrong about its clock, how much that is, and
    the smallest tolerance that it or one before it has had, in seconds."""
    reports: list[tuple[float, Process | None]] = field(default_factory=list)
    """Who asked when in the steps of `errors`."""
    asked: dict[Process, float] = field(default_factory=dict)
    """When each process asked last."""
    tolerances: dict[str, float] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    """The tickets up to which each record said that they are dead."""
    revoked_at: dict[float, dict[str, int]] = field(default_factory=dict)
    """The same, when the store lost writes."""
    readings: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """What the clock of each record's queue read, late grants taken off, in seconds."""
    limits: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """Since when each record has had which limit of running jobs; 0: none."""
    leases: list[tuple[float, float]] = field(default_factory=list)
    """When a lease was longer than any before, and how long it was from then on, in seconds."""
    leased: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the store last counted each ticket's job as running."""
    copies: bool = False
    """Whether requests may reach the store twice: one that comes late renews a lease of a job that ended."""
    overtaken: set[Process] = field(default_factory=set)
    """Whose renewals of leases may have reached the store when they had given them up, and asked again: then
    a lease is renewed of a job that ended meanwhile."""
    reclaims: int = 0
    issues: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each ticket was issued: more than once only when the store forgot it."""
    own: dict[Process, dict[tuple[str, int], float]] = field(default_factory=lambda: defaultdict(dict))
    """When each ticket was last issued to a process."""
    ahead: dict[tuple[str, int], float] = field(default_factory=dict)
    """How far ahead its slot was then, in seconds."""
    dues: dict[tuple[str, int], int] = field(default_factory=dict)
    """Its slot."""
    settled: dict[tuple[str, int], float] = field(default_factory=dict)
    """When the store was told first that the job of a slot, on the queue's clock, took more than it said."""
    repeated: float = float("inf")
    """When a question that gave units of windows back reached the store for the second time."""
    clocks: dict[str, int] = field(default_factory=dict)
    """What the clock of each record's queue read last."""
    exchanges: dict[Process, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    withdrawn: dict[Process, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """When a question was sent whose caller gave it up, and when that was: others wait behind it."""
    known: dict[Process, tuple[float, State]] = field(default_factory=dict)
    """When a process last heard of its slots, and what the record was then."""
    questions: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When a process sent something to the store."""
    released: list[tuple[float, Process]] = field(default_factory=list)
    """When a process that believed the queue held, and had asked nothing, was told that it is not."""
    stalls: list[tuple[float, float, Process]] = field(default_factory=list)
    """From when until when a process did not run."""
    attached: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When a process heard of the record."""
    failures: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When a process could not reach the store."""
    unanswered: dict[Process, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The same, of what it asked for jobs that wait."""
    taken: dict[Process, dict[tuple[str, int], int]] = field(default_factory=lambda: defaultdict(dict))
    """The tickets that a process got, less those that it gave back, and how many slots each has."""
    misses: list[Miss] = field(default_factory=list)
    shown: set[Process] = field(default_factory=set)
    """Who was shown by an answer that the store lost something. A request that made a record, and reaches the
    store again after that was lost, makes another of the same name: it shows only by its counters."""
    holds: list[tuple[float, float]] = field(default_factory=list)
    """When each began and how long it was meant to be, in seconds."""
    resumes: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    """When the settings were changed."""
    steps: list[tuple[float, float]] = field(default_factory=list)
    """When the store's clock was stepped, and by how much."""
    losses: list[float] = field(default_factory=list)
    """When the store lost writes."""
    failovers: list[float] = field(default_factory=list)
    """When it fell back to an older copy that had the record."""
    died: dict[Process, float] = field(default_factory=dict)
    closed: dict[Process, float] = field(default_factory=dict)
    drains: dict[Process, bool] = field(default_factory=dict)
    """Whether jobs that waited when a handle was closed were to begin."""
    exited: dict[Process, float] = field(default_factory=dict)
    """When a process ended by itself, its handle being closed."""
    violations: list[Violation] = field(default_factory=list)
    calls: int = 0
    alone: list[tuple[float, Process, int]] = field(default_factory=list)
    """Questions of a process in which alone jobs wait, each with how many in a row it was."""
    wanted: float = 0.0
    """How many slots passed while jobs waited and the queue was not held."""

    def may_run(self, start: Start) -> int:
        """How many jobs might run with a start: by the limit at its grant, or by a larger one since."""
        grant = start.grants[-1]
        since = [most for at, most in self.limits[start.record] if grant.at < at <= start.at]
        return max([grant.settings.max_running, *since])

    @property
    def limited(self) -> bool:
        """Whether there was a limit of running jobs at some time."""
        return any(most for limits in self.limits.values() for _, most in limits)

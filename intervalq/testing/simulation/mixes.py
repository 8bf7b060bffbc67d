"""The mixes of faults, and what one seed makes of a mix: the plan of one run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from intervalq.testing.simulation.plans import Plan, PlannedJob, PlannedProcess, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often which fault happens; every mix also has pauses, cancelled jobs, closed handles and so on."""

    slow: float = 0.0
    """The share of messages that take 0.1 to 2.5 s longer."""
    lost: float = 0.0
    """The share of requests, and again of answers and wake-ups, that get lost."""
    again: float = 0.0
    """The share of requests that reach the store twice, the second time up to 2 s later."""
    outages: int = 0
    """The most times that one process can't reach the store for a while."""
    stalls: int = 0
    """The most times that one process doesn't run for a while."""
    interrupted: float = 0.0
    """The chance of a process that is granted to stop around then, for up to three intervals."""
    taken: float = 0.0
    """The share of the time in which processes don't run: each has its processor for the rest, by turns."""
    late: float = 0.0
    """Timers are late by up to so many intervals."""
    crashes: float = 0.0
    """The chance of a process to die."""
    steps: int = 0
    """The most times that the store's clock is set forward or back."""
    step: tuple[float, float] = (0.05, 5)
    """By how much, in seconds."""
    losses: int = 0
    """The most times that the store loses writes: a failover to an older copy, or all records."""
    interval: tuple[float, float] = (0.05, 2.0)
    """Between which bounds the interval lies, in seconds."""
    jobs: tuple[int, int] = (4, 41)
    """And the number of jobs."""
    near: bool = False
    """All processes are near to the store."""
    comes: tuple[str, ...] = ("slot", "run")
    """Then how jobs come that come one soon after the other."""
    way: tuple[float, float] | None = None
    """How long a message takes on the shortest way and on the longest, in seconds; None: 0.1 ms to 40 ms."""
    bursts: tuple[int, ...] = ()
    """Bursts to choose from; none: 2 or 3 now and then, else 1."""
    limited: float = 0.2
    """The chance of a limit of running jobs."""
    takes: tuple[float, float] | None = None
    """How long jobs run, in seconds; None: some intervals at most."""
    ppm: float = 200.0
    """By how many millionths clocks run fast or slow at most."""
    changes: int = 0
    """The most times that interval, burst and limit are changed, beside what other mixes do."""
    loops: int = 0
    """The most processes more that join, and die soon."""
    callers: tuple[int, ...] = ()
    """Of how many callers each process has one number: each wants the next slot once its last job ended."""
    thinks: tuple[float, float] = (0.0, 0.0)
    """How many intervals a caller takes in between."""
    threads: float = 0.0
    """The share of jobs that are plain functions, and begin in a thread."""
    cancelled: float = 0.06
    """The share of jobs that are cancelled after a while, unless they have begun."""
    lookaheads: tuple[int | None, ...] = (1, 3, 16, None)
    """What handles choose from."""
    withdrawn: float = 0.0
    """The chance of a process that is granted that a job of it is cancelled around then."""
    closes: float = 0.05
    """The chance of a handle to be closed while the others go on."""
    exits: bool = False
    """A process is no more once its handle is closed, as at the end of a program."""
    verbs: bool = True
    """Whether queues are paused, cooled down, reconfigured and so on."""
    measured: float = 0.0
    """A store's driver says when it sent and received, and takes up to so many seconds beside that."""


MIXES: Final = {
    "calm": Mix(),
    "slow": Mix(slow=0.08),
    "lossy": Mix(lost=0.05, outages=1),
    "stalls": Mix(stalls=3),
    "crashes": Mix(crashes=0.4),
    "clock": Mix(steps=4),
    "failover": Mix(losses=3),
    "late": Mix(late=3.0, again=0.1, lost=0.02),
    "taken": Mix(taken=0.8, again=0.1),
    "interrupted": Mix(interrupted=0.5, again=0.2, lost=0.04, losses=1),
    "tight": Mix(
        stalls=2,
        late=0.5,
        again=0.02,
        interval=(20e-6, 0.01),
        jobs=(20, 90),
        near=True,
        bursts=(1, 1, 1, 2, 5, 20, 50),
    ),
    "local": Mix(
        interval=(50e-6, 0.002),
        jobs=(20, 90),
        near=True,
        way=(1e-6, 4e-6),
        comes=("slot", "run", "add"),
        bursts=(1, 1, 1, 2, 5),
    ),
    "stepped": Mix(steps=6, step=(0.005, 0.5), interval=(0.002, 0.05), jobs=(20, 90), near=True, bursts=(1,)),
    "long": Mix(crashes=0.3, steps=1, limited=1.0, takes=(1.0, 30.0), jobs=(4, 15)),
    "anew": Mix(losses=1, limited=1.0, takes=(1.0, 30.0), jobs=(4, 15)),
    "drift": Mix(ppm=250.0, interval=(1.0, 60.0), jobs=(4, 15), stalls=1),
    "changed": Mix(changes=6, bursts=(1, 1, 2, 5, 10), limited=0.5, stalls=1),
    "loops": Mix(loops=12, crashes=0.2, limited=0.3),
    "callers": Mix(
        callers=(1, 1, 1, 2, 5),
        thinks=(0.0, 0.5),
        interval=(0.05, 1.0),
        jobs=(30, 120),
        near=True,
        limited=0.0,
        cancelled=0.0,
        verbs=False,
    ),
    "regulars": Mix(
        callers=(1, 1, 2),
        thinks=(0.0, 3.0),
        interval=(0.05, 1.0),
        jobs=(20, 60),
        near=True,
        lost=0.03,
        stalls=1,
        losses=1,
        steps=1,
    ),
    "swift": Mix(
        callers=(1, 1, 2, 8, 30),
        thinks=(0.0, 3.0),
        interval=(20e-6, 200e-6),
        jobs=(40, 100),
        near=True,
        way=(1e-6, 1e-5),
        bursts=(1, 1, 2, 10),
        limited=0.0,
        measured=5e-6,
        withdrawn=0.1,
    ),
    "threads": Mix(threads=0.6, late=0.2, stalls=1, interval=(0.02, 0.5), measured=0.01),
    "crowd": Mix(jobs=(140, 180), interval=(0.002, 0.02), cancelled=0.7, limited=0.1, threads=0.1),
    "withdrawn": Mix(withdrawn=0.5, limited=0.5, takes=(0.0, 1.0), threads=0.1, interval=(0.02, 1.0)),
    "exits": Mix(closes=0.7, exits=True, limited=0.8, takes=(0.0, 4.0), jobs=(8, 30), interval=(0.05, 0.5)),
    "shaky": Mix(lost=0.05, outages=2, limited=1.0, takes=(0.1, 12.0), jobs=(4, 15), closes=0.5),
    "backlog": Mix(
        lookaheads=(1, 1, 1, 3, 16, None),
        interval=(0.02, 0.5),
        jobs=(20, 80),
        verbs=False,
        cancelled=0.0,
        limited=0.0,
    ),
    "all": Mix(slow=0.03, lost=0.06, outages=1, stalls=1, crashes=0.2, steps=1, losses=2),
}
"""The mixes by name."""

CHANGES: Final = {"configure": "interval", "burst": "burst", "limit": "max_running"}
"""The verbs that change a setting, and which."""


def plan(mix: Mix, seed: str) -> Plan:
    """What the seed makes of a mix."""
    return _Planner(mix, Random(seed)).plan()  # noqa: S311 - repeatable on purpose


class _Planner:
    def __init__(self, mix: Mix, random: Random) -> None:
        self.mix = mix
        self.random = random
        self.interval = round(self.spread(*mix.interval), 4 if mix.interval[0] >= 0.05 else 6)
        self.total = int(self.spread(*mix.jobs))
        self.length = self.total * self.interval * random.uniform(0.6, 1.2)
        self.heavy = self.likely(0.2)
        self.ranked = self.likely(0.25)
        self.failing = self.likely(0.15)
        self.impatient = self.likely(0.1)
        self.slow_jobs = self.likely(0.3)
        self.max_running = random.choice((1, 1, 2, 3)) if self.likely(mix.limited) else None
        self.backlog = self.likely(0.5)
        if self.interval < 0.05:  # else all would be over within a round trip
            self.length += self.spread(0.01, 0.5)

    def likely(self, chance: float) -> bool:
        return self.random.random() < chance

    def spread(self, low: float, high: float) -> float:
        """As often between 1 and 2 as between 10 and 20."""
        return float(low * (high / low) ** self.random.random())

    def moment(self) -> float:
        return self.random.uniform(0, self.length)

    def plan(self) -> Plan:
        random, mix = self.random, self.mix
        burst = random.choice((2, 3)) if self.likely(0.15) else 1
        if mix.bursts:
            burst = random.choice(mix.bursts)
        tolerance = self.interval * random.uniform(0.01, 0.9) if self.likely(0.15) else None
        tolerance = tolerance and max(1e-6, round(tolerance, 6))
        given: dict[str, Any] = {
            "interval": self.interval,
            "burst": burst,
            "max_running": self.max_running,
            "tolerance": tolerance,
        }
        count = random.randint(2, 5)
        processes = [self.process(chr(ord("A") + number), given) for number in range(count)]
        if self.likely(0.2):
            joins = self.process("J", {} if self.likely(0.5) else given)
            joins.at = self.moment()
            processes.append(joins)
        loops = random.randint(1, mix.loops) if mix.loops else 0
        processes += [self.loop(number, given) for number in range(loops)]
        busy = processes[:1] if self.likely(0.1) else processes
        for _ in range(self.total):
            process = random.choice(busy)
            process.jobs.append(self.job(process.at))
        if mix.callers:
            for process in processes:
                self.call(process)
        elif mix.near and mix.comes:
            for process in processes:
                self.stream(process)
        names = [process.name for process in processes]
        losses = [(self.moment(), self.loss()) for _ in range(random.randint(0, mix.losses))]
        verbs = self.verbs(names)
        for at, _ in losses:
            # The news may come with the answer to any command: some ask before their jobs do.
            soon = [name for name in names for _ in range(random.choice((0, 1, 2)))]
            verbs += [
                (max(0, at + random.uniform(-0.05, self.interval)), name, "inspect", 0) for name in soon
            ]
        longest = max((length for process in processes for _, _, length in process.stalls), default=0.0)
        return Plan(
            interval=self.interval,
            burst=burst,
            max_running=self.max_running,
            tolerance=tolerance,
            waking=self.likely(0.5),
            store_base=random.randint(10**15, 2 * 10**15),
            store_ppm=random.uniform(-mix.ppm, mix.ppm),
            processes=processes,
            keyed=self.likely(0.2),
            verbs=verbs,
            steps=[(self.moment(), self.step()) for _ in range(random.randint(0, mix.steps))],
            losses=losses,
            ends=self.length + longest + 0.1,
        )

    def process(self, name: str, given: dict[str, Any]) -> PlannedProcess:
        random, mix = self.random, self.mix
        outages, crash = [], None
        for _ in range(random.randint(0, mix.outages)):
            at = self.moment()
            outages.append((at, at + self.spread(0.05, 8)))
        stalls = [
            (self.moment(), random.randint(1, 30), self.spread(0.005, 5))
            for _ in range(random.randint(0, mix.stalls))
        ]
        if self.likely(mix.crashes):
            crash = (self.moment(), random.randint(1, 30))
        return PlannedProcess(
            name=name,
            options={**given, "lookahead": random.choice(mix.lookaheads)},
            route=self.route(),
            base=random.randint(0, 10**12),
            ppm=random.uniform(-mix.ppm, mix.ppm),
            lateness=self.lateness(),
            outages=outages,
            stalls=stalls,
            turn=self.interval * self.spread(0.05, 2) if mix.taken else None,
            crash=crash,
            close=(self.moment(), self.likely(0.5)) if self.likely(mix.closes) else None,
        )

    def loop(self, number: int, given: dict[str, Any]) -> PlannedProcess:
        """A process that dies soon, as the one did that it is begun in the place of."""
        process = self.process(f"L{number}", given)
        process.at = self.moment()
        process.crash = process.at + self.spread(0.001, 1.0), self.random.randint(1, 60)
        return process

    def stream(self, process: PlannedProcess) -> None:
        """Some of a process's jobs come one soon after the other: for the later ones slots may be ready."""
        at, gap = self.moment(), self.interval * self.spread(0.02, 5)
        for job in process.jobs[self.random.randint(0, 10) :]:
            job.at = at = max(at, process.at + 1e-6) + gap
            job.way, job.retries = self.random.choice(self.mix.comes), 0

    def call(self, process: PlannedProcess) -> None:
        """A process's jobs are those of some callers: each comes back when its last job has ended."""
        random, jobs = self.random, process.jobs
        jobs.sort(key=lambda job: job.at)
        callers, longest = random.choice(self.mix.callers), random.uniform(*self.mix.thinks)
        for number in range(min(callers, len(jobs))):
            own = jobs[number::callers]
            for job in own:
                job.way, job.retries = random.choice(("slot", "slot", "run")), 0
                if self.likely(0.9):
                    job.plain, job.priority, job.cost, job.timeout = True, 0, 1, None
            thinks = [random.uniform(1, 5) if self.likely(0.1) else random.uniform(0, longest) for _ in own]
            process.callers.append((own, [self.interval * each for each in thinks]))
        process.jobs = []

    def lateness(self) -> float:
        late = self.spread(0.00002, 0.002)
        return self.interval * self.random.uniform(0, self.mix.late) if self.mix.late else late

    def route(self) -> Route:
        low, high = (0.0001, 0.002) if self.likely(0.7) or self.mix.near else (0.005, 0.04)
        low, high = self.mix.way or (low, high)
        up, down = self.spread(low, high), self.spread(low, high)
        deadline = 5.0 if self.likely(0.6) else self.random.uniform(0.3, 2)
        return Route(up=(0.7 * up, 1.3 * up), down=(0.7 * down, 1.3 * down), deadline=deadline)

    def job(self, earliest: float) -> PlannedJob:
        random, mix = self.random, self.mix
        at = self.random.uniform(0, self.interval) if self.backlog else self.moment()
        fails = random.choice((0, 0, 1, 2)) if self.failing else 0
        longest = 2.5 if self.max_running else 0.5
        way = random.choice(("add", "add", "add", "slot", "run"))
        if mix.threads and self.likely(mix.threads):
            way, fails = "thread", 0
        return PlannedJob(
            at=max(at, earliest + 1e-6),
            way=way,
            priority=random.choice((-1, 0, 0, 0, 1, 5)) if self.ranked else 0,
            cost=random.choice((1, 1, 1, 2, 4)) if self.heavy else 1,
            takes=self.takes(longest),
            fails=fails,
            retries=random.randint(0, 2) if fails and way != "slot" else 0,
            timeout=self.interval * random.uniform(1, 15) if self.impatient else None,
            cancelled_after=random.uniform(0, self.length / 2) if self.likely(mix.cancelled) else None,
        )

    def takes(self, longest: float) -> float:
        if self.mix.takes is not None:
            return self.random.uniform(*self.mix.takes)
        return self.interval * self.random.uniform(0, longest) if self.slow_jobs or self.max_running else 0.0

    def verbs(self, names: list[str]) -> list[tuple[float, str | None, str, float]]:
        random = self.random
        verbs: list[tuple[float, str | None, str, float]] = []
        if not self.mix.verbs:
            return verbs
        if self.likely(0.25):
            # By the operator: a shard's pause might come after the end of all faults, for ever.
            at = self.moment()
            verbs += [(at, None, "pause", 0), (at + self.spread(0.01, 6), None, "resume", 0)]
        if self.likely(0.2):
            verbs.append((self.moment(), random.choice(names), "cool_down", round(self.spread(0.01, 6), 6)))
        if self.likely(0.2):
            for _ in range(random.randint(1, 2)):
                changed = round(self.interval * self.spread(0.25, 4), 6)
                verbs.append((self.moment(), None, "configure", changed))
        for _ in range(random.randint(1, self.mix.changes) if self.mix.changes else 0):
            verb, amount = random.choice(
                (("burst", (1, 2, 5, 20)), ("limit", (0, 1, 2, 4)), ("configure", ()))
            )
            changed = random.choice(amount) if amount else round(self.interval * self.spread(0.25, 4), 6)
            verbs.append((self.moment(), None, verb, changed))
        if self.likely(0.05):
            verbs.append((self.moment(), random.choice(names), "reclaim", 0))
        if self.likely(0.3):
            for _ in range(random.randint(1, 3)):
                verbs.append((self.moment(), random.choice(names), "inspect", 0))
        return verbs

    def step(self) -> float:
        return self.spread(*self.mix.step) * self.random.choice((-1, 1))

    def loss(self) -> float | None:
        return None if self.likely(0.4) else self.spread(0.01, 3)

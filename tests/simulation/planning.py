"""Makes the plan of one run from a mix and a seed."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final

from simulation.deadlines import add_deadlines
from simulation.mix import Mix
from simulation.mixes import CHANGES
from simulation.plans import Plan, PlannedJob, PlannedProcess, Route
from simulation.windows import add_windows, differ

_MINUTE: Final = 60_000_000
_DAY: Final = 24 * 60


def plan(mix: Mix, seed: str) -> Plan:
    """The plan of a mix for a seed; the same one each time."""
    planned = _Planner(mix, Random(seed)).plan()
    if mix.joins:
        _join(planned, Random(f"{seed}:joins"))
    if mix.hours:
        _add_hours(planned, Random(f"{seed}:hours"))
    if mix.windows:
        add_windows(planned, Random(f"{seed}:windows"), mix.overruns)
    if mix.windows and mix.joins:
        differ(planned, Random(f"{seed}:limits"))
    if mix.deadlines:
        add_deadlines(planned, Random(f"{seed}:deadlines"))
    if mix.busy or mix.slow_threads:
        _slow_down(planned, mix, Random(f"{seed}:slow"))
    return planned


def _slow_down(plan: Plan, mix: Mix, random: Random) -> None:
    """Make some processes busy after each answer, and the threads of some runs slow to start."""
    for process in plan.processes:
        if mix.busy and random.random() < 0.5:
            process.busy, process.turn = plan.interval * random.uniform(0, mix.busy), None
    are_slow = random.random() < 0.5
    for job in (job for process in plan.processes for job in process.jobs):
        if are_slow and job.way == "thread" and random.random() < 0.5:
            job.slow = plan.interval * random.uniform(0, mix.slow_threads)


def _join(plan: Plan, random: Random) -> None:
    """Give some handles other settings and an `on_mismatch`, or change them by one of these.

    Some keep their jobs for a while.
    """
    names = [process.name for process in plan.processes]
    plan.verbs = [
        (at, random.choice((who, *names)) if verb in CHANGES else who, verb, amount)
        for at, who, verb, amount in plan.verbs
    ]
    for process in plan.processes:
        if not process.options.get("interval"):
            continue
        if random.random() < 0.6:
            process.options["on_mismatch"] = random.choice(("adopt", "update", "raise"))
        if random.random() < 0.5:
            process.options["interval"] = round(plan.interval * random.choice((1.5, 2.0, 3.0)), 6)
        if random.random() < 0.3:
            process.options["burst"] = random.choice((1, 2, 4))
        if random.random() < 0.2:
            process.options["max_running"] = random.choice((1, 3))
        if random.random() < 0.3:
            process.options["start"] = False
            is_closed = process.close is not None and process.close[1] and random.random() < 0.8
            process.starts = math.inf if is_closed else random.uniform(process.at, plan.ends)


def _add_hours(plan: Plan, random: Random) -> None:
    """Let the hours of the queue end for the shortest time possible: a minute, anywhere in the run."""
    opens = plan.store_base // _MINUTE % _DAY
    window = "{:02}:{:02}-{:02}:{:02}".format(*divmod(opens, 60), *divmod((opens - 1) % _DAY, 60))
    closes = random.uniform(0, plan.ends)
    plan.store_base -= plan.store_base % _MINUTE + _MINUTE + round(closes * 1e6)
    rate = 1 + plan.store_ppm / 1e6
    plan.night = closes / rate, (closes + _MINUTE / 1e6) / rate
    for process in plan.processes:
        process.options["window"] = window


class _Planner:
    def __init__(self, mix: Mix, random: Random) -> None:
        self.mix = mix
        self.random = random
        self.interval = round(self.spread(*mix.interval), 4 if mix.interval[0] >= 0.05 else 6)
        self.total = int(self.spread(*mix.jobs))
        self.length = self.total * self.interval * random.uniform(0.6, 1.2) * mix.longer
        self.heavy = self.likely(0.2)
        self.ranked = self.likely(0.25)
        self.failing = self.likely(0.15)
        self.impatient = self.likely(0.1)
        self.slow_jobs = self.likely(0.3)
        self.max_running = random.choice((1, 1, 2, 3)) if self.likely(mix.limited) else None
        self.backlog = self.likely(0.5)
        if self.interval < 0.05:  # otherwise the whole run would fit into one round trip
            self.length += self.spread(0.01, 0.5)

    def likely(self, chance: float) -> bool:
        return self.random.random() < chance

    def share(self, of: float) -> float:
        """A share of the interval in seconds, at least a microsecond."""
        return max(1e-6, round(self.interval * of, 6))

    def spread(self, low: float, high: float) -> float:
        """A random value, log-uniform: as often between 1 and 2 as between 10 and 20."""
        return float(low * (high / low) ** self.random.random())

    def moment(self) -> float:
        return self.random.uniform(0, self.length)

    def plan(self) -> Plan:
        random, mix = self.random, self.mix
        burst = random.choice((2, 3)) if self.likely(0.15) else 1
        if mix.bursts:
            burst = random.choice(mix.bursts)
        tolerance = self.share(random.uniform(0.01, 0.9)) if self.likely(0.15) else None
        if mix.tolerances:
            tolerance = self.share(self.spread(*mix.tolerances))
        given: dict[str, Any] = {
            "interval": self.interval,
            "burst": burst,
            "max_running": self.max_running,
            "tolerance": tolerance,
        }
        count = random.randint(2, 5)
        processes = [self.process(chr(ord("A") + number), given) for number in range(count)]
        if self.likely(0.2):
            processes.append(self.newcomer(given))
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
        for process in processes if mix.shut else ():
            self.shut(process)
        names = [process.name for process in processes]
        losses = [(self.moment(), self.loss()) for _ in range(random.randint(0, mix.losses))]
        verbs = self.verbs(names)
        for at, _ in losses:
            # The answer to any command may show the loss: some processes inspect the queue before.
            soon = [name for name in names for _ in range(random.choice((0, 1, 2)))]
            verbs += [
                (max(0, at + random.uniform(-0.05, self.interval)), name, "inspect", 0) for name in soon
            ]
        longest = max((length for process in processes for _, _, length in process.stalls), default=0.0)
        if mix.away[0] > 10:  # otherwise the end of all faults may cut outages short
            longest = mix.away[1]
        return Plan(
            interval=self.interval,
            burst=burst,
            max_running=self.max_running,
            tolerance=tolerance,
            limits=(),
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
            outages.append((at, at + self.spread(*mix.away)))
        stalls = [
            (self.moment(), random.randint(1, 30), self.spread(0.005, 5))
            for _ in range(random.randint(0, mix.stalls))
        ]
        if self.likely(mix.crashes):
            crash = (self.moment(), random.randint(1, 30))
        return PlannedProcess(
            name=name,
            options={
                **given,
                "lookahead": random.choice(mix.lookaheads),
                "strict": bool(mix.strict) and self.likely(mix.strict),
            },
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

    def newcomer(self, given: dict[str, Any]) -> PlannedProcess:
        """A process that joins later."""
        joins = self.process("J", {} if self.likely(0.5) else given)
        joins.at = self.moment()
        if self.mix.new and self.likely(self.mix.new):
            joins.options = {**given, "lookahead": joins.options["lookahead"], "new": True}
        return joins

    def loop(self, number: int, given: dict[str, Any]) -> PlannedProcess:
        """A process that dies soon after its start, like the one before it: a crash loop."""
        process = self.process(f"L{number}", given)
        process.at = self.moment()
        process.crash = process.at + self.spread(0.001, 1.0), self.random.randint(1, 60)
        return process

    def stream(self, process: PlannedProcess) -> None:
        """Let some of a process's jobs follow each other closely: later ones may find a slot ready."""
        at, gap = self.moment(), self.interval * self.spread(0.02, 5)
        for job in process.jobs[self.random.randint(0, 10) :]:
            job.at = at = max(at, process.at + 1e-6) + gap
            job.way, job.retries = self.random.choice(self.mix.comes), 0

    def shut(self, process: PlannedProcess) -> None:
        """Let a handle be closed while its jobs wait, and others come as these begin."""
        if process.jobs and self.likely(0.7):
            at = self.random.choice(process.jobs).at + self.interval * self.random.uniform(0, 3)
            process.close = at, self.likely(0.9)
            process.latecomers = [PlannedJob(at=at, way="slot", plain=True) for _ in range(10)]

    def call(self, process: PlannedProcess) -> None:
        """Assign a process's jobs to callers, each of which comes back when its last job has ended."""
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
            lags=self.interval * random.uniform(0, mix.lags) if mix.lags and way == "thread" else 0.0,
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
            # By the operator: a slow process's pause might arrive after the end of all faults, and never end.
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
        for _ in range(random.randint(1, self.mix.pauses) if self.mix.pauses else 0):
            at = self.moment()
            verbs += [(at, None, "pause", 0), (at + self.spread(0.01, 1), None, "resume", 0)]
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

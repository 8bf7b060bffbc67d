"""Random backlogs on a record with limits, judged by brute force: are they kept, and how soon do jobs start?

    python tests/window_backlogs.py 100000            # this many runs; prints the seeds that broke a promise

These runs are short and cheap: a client of perfect timing has jobs all the time, and requests slots from the
rules. In `window_oracle`, several shards also die, repeat requests, hold the queue and change its limits.

One judge is a server: it counts the arrivals of calls in every window, by estimates until these are settled.
The other one is an oracle without cells: it knows the same jobs in the same order, and when each one's
estimate is settled, and begins each as early as the windows allow. These are longer than the server's by how
late a job may begin, because the rules can't know that it won't.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from random import Random
from typing import NamedTuple

from intervalq import rules
from intervalq._spec import standing
from intervalq._spec.record import NO_PACE
from intervalq._spec.windows import lateness
from intervalq.rules import STARTS, Advance, Limit, Settings, Settled, Slot, State, Units

SECOND = 1_000_000
T0 = 1_000_000_000 * SECOND
WINDOWS = 4
"""How many of its longest windows a run takes, at the least, but for the first window's units."""
LEAST = 0.98
"""The part of the oracle's speed that the rules must reach."""


class Job(NamedTuple):
    """What a job takes of each limit, and what is known of that."""

    estimates: Units
    truth: Units
    late: int
    """How long after its slot it begins."""
    travels: float
    """How long its call takes to the server, in jitters of a limit."""
    length: int
    """How long after its beginning the truth is known."""


class Start(NamedTuple):
    """A job that began."""

    job: Job
    slot: int
    at: int


class Counter:
    """What was taken of one limit, as time goes on."""

    def __init__(self, limit: Limit, late: int) -> None:
        self.limit, self._late = limit, late
        self._taken = 0
        self._events: list[tuple[int, int]] = []  # when the number changes, and by how much

    def when(self, units: int, at: int) -> int:
        """The first instant from `at` on with room for the units. Time never goes back."""
        while self._events and (self._events[0][0] <= at or self._taken + units > self.limit.most):
            then, change = heapq.heappop(self._events)
            at, self._taken = max(at, then), self._taken + change
        return at

    def add(self, at: int, estimate: int, truth: int, known: int) -> None:
        """Count units: the estimate until the truth is `known`."""
        end = ending(self.limit, at + self._late + self.limit.jitter)
        self._taken += estimate
        for then, change in (
            ((known, truth - estimate), (end, -truth)) if known < end else ((end, -estimate),)
        ):
            heapq.heappush(self._events, (then, change))


def ending(limit: Limit, at: int) -> int:
    """When units that arrive at an instant don't count any more."""
    if limit.edge is None:
        return at + limit.window
    return at + limit.window - (at - limit.edge) % limit.window


class Backlog:
    """One run."""

    def __init__(self, seed: int, *, fixed: bool = False) -> None:
        self.seed = seed
        self._random = Random(f"backlog {seed}")
        self._fixed = fixed
        self.settings = self._settings()
        self._settles = self._random.random() < 0.125  # these take six times as long
        self._now = T0 + self._random.randrange(20 * SECOND)
        self._state: State | None = None
        self._late = 0
        self._known: list[tuple[int, Settled]] = []
        self.starts: list[Start] = []

    def _settings(self) -> Settings:
        pick = self._random.choice
        base = pick((5_000, 100_000, SECOND, 10 * SECOND, 60 * SECOND))
        interval = pick((NO_PACE, base // 100, base // 20, base // 4))
        late = base // pick((100, 1_000)) if interval == NO_PACE else 1
        units = self._random.sample((STARTS, STARTS, "tokens", "bytes"), self._random.randint(1, 3))
        limits = {
            (unit, window): self._limit(unit, window) for unit in units for window in [base * pick((1, 1, 3))]
        }
        return Settings(interval, late, 0, late if interval == NO_PACE else 0, False, (*limits.values(),))

    def _limit(self, unit: str, window: int) -> Limit:
        pick = self._random.choice
        most = pick((1, 2, 5, 20)) if unit == STARTS else 20 * pick((1, 10, 1_000))
        edge = self._random.randrange(window) if self._fixed and self._random.random() < 0.7 else None
        return Limit(most, window, unit, pick((0, 0, 0, window // 50)), edge)

    def _jobs(self) -> deque[Job]:
        """Jobs for `WINDOWS` of the longest windows, at the least."""
        limits, jobs = self.settings.limits, deque[Job]()
        longest, done = WINDOWS * max(limit.window for limit in limits), [0.0] * len(limits)
        while len(jobs) * self.settings.interval < longest and max(done) < longest:
            jobs.append(job := self._job())
            pairs = zip(limits, done, job.truth, strict=True)
            done = [before + some / limit.most * limit.window for limit, before, some in pairs]
        return jobs

    def _job(self) -> Job:
        random, limits = self._random, self.settings.limits
        estimates = tuple(
            1 if limit.unit == STARTS else min(limit.most, int(limit.most / 20 * random.paretovariate(1)))
            for limit in limits
        )
        truth = tuple(
            some if limit.unit == STARTS or not self._settles else random.randint(some // 4, some)
            for limit, some in zip(limits, estimates, strict=True)
        )
        shortest = min(limit.window for limit in limits)
        late = random.choice((0, random.randint(0, self._late), self._late))
        length = random.randint(0, random.choice((shortest // 10, shortest)))
        return Job(estimates, truth, late, random.choice((0.0, random.random(), 1.0)), length)

    def run(self) -> Backlog:
        """Begin all jobs."""
        first = self._ask()
        assert first.state is not None
        self._late = lateness(first.state)
        jobs = self._jobs()
        if self._settles:
            self._one_by_one(jobs)
        else:
            self._in_runs(jobs)
        return self

    def _ask(self, **fields: object) -> rules.Answer:
        command = Advance(settings=self.settings, nonce="g", generation="g", **fields)  # type: ignore[arg-type] # of mixed types
        self._state, answer = rules.apply(self._state, command, self._now)
        return answer

    def _in_runs(self, jobs: deque[Job]) -> None:
        """Take several tickets together, at the last slot of those before; nothing is settled."""
        while jobs:
            some = [jobs.popleft() for _ in range(min(len(jobs), self._random.choice((1, 4, 16))))]
            reach = self._random.choice((0, SECOND, rules.FOREVER))
            answer = self._ask(take=len(some), units=tuple(job.estimates for job in some), reach=reach)
            for job, slot in zip(some, answer.taken[: answer.begun], strict=False):
                self._begin(job, slot)
            if rest := answer.taken[answer.begun :]:
                self._now = max(self._now, rest[0].due)
                assert len(self._ask(slots=rest).granted) == len(rest)
            for job, slot in zip(some[answer.begun :], rest, strict=True):
                self._begin(job, slot)
            self._now = max(self._now, answer.taken[-1].due)

    def _one_by_one(self, jobs: deque[Job]) -> None:
        """Ask for the next slot whenever it may come sooner."""
        answer = self._ask(take=1, units=(jobs[0].estimates,))
        while True:
            slot = answer.taken[0]
            if answer.begun:
                self._begin(jobs.popleft(), slot)
                if not jobs:
                    return
                answer = self._ask(take=1, units=(jobs[0].estimates,))
                continue
            answer = self._granted(slot, jobs)
            if not jobs:
                return

    def _granted(self, slot: Slot, jobs: deque[Job]) -> rules.Answer:
        """Wait until the slot is granted, and take the next ticket in the same step."""
        following = (jobs[1].estimates,) if len(jobs) > 1 else ()
        while True:
            assert self._state is not None
            soonest = standing.soonest(self._state, slot, self._now)
            instants = [slot.due, *([soonest] if soonest > self._now else [])]
            if self._known:
                instants.append(self._known[0][0])
            self._now = max(self._now, min(instants))
            settled = []
            while self._known and self._known[0][0] <= self._now:
                settled.append(heapq.heappop(self._known)[1])
            ahead = 0 if self._now < slot.due else None
            answer = self._ask(
                slots=(slot,), settled=tuple(settled), ahead=ahead, take=len(following), units=following
            )
            if answer.granted:
                self._begin(jobs.popleft(), standing.placed(self._state, slot))
                return answer

    def _begin(self, job: Job, slot: Slot) -> None:
        assert self._state is not None
        at = max(self._now, slot.due + job.late)
        assert at <= slot.due + self._late
        self.starts.append(Start(job, max(self._now, slot.due), at))
        if job.truth != job.estimates:
            more = tuple(b - a for a, b in zip(job.estimates, job.truth, strict=True))
            heapq.heappush(self._known, (at + job.length, Settled(slot.due, self._state.lag, more)))

    def over(self) -> list[str]:
        """Every limit of which a server saw too much in a window; each window ends with an arrival."""
        found = []
        for place, limit in enumerate(self.settings.limits):
            calls = sorted(
                (at + int(job.travels * limit.jitter), at + job.length, job) for job, _, at in self.starts
            )
            first = 0
            for number, (at, _, _) in enumerate(calls):
                while ending(limit, calls[first][0]) <= at:
                    first += 1
                window = calls[first : number + 1]
                counted = sum(
                    (job.truth if known <= at else job.estimates)[place] for _, known, job in window
                )
                if counted > limit.most:
                    found.append(f"seed {self.seed}: {counted} of {limit} before {at - T0}")
                    break
        return found

    def share(self, late: int | None = None) -> float:
        """The time that the oracle needs, divided by the time that the jobs took.

        `late`: by how much the windows are longer; None: by how late a job may begin.
        """
        late = self._late if late is None else late
        counters = [Counter(limit, late) for limit in self.settings.limits]
        now = begun = self.starts[0].slot
        for number, (job, slot, at) in enumerate(self.starts):
            if number:
                now += self.settings.interval
            now = max(
                [counter.when(some, now) for counter, some in zip(counters, job.estimates, strict=True)]
            )
            known = now + at - slot + job.length
            for counter, estimate, truth in zip(counters, job.estimates, job.truth, strict=True):
                counter.add(now, estimate, truth, known)
        took = self.starts[-1].slot - begun
        return (now - begun) / took if took else 1.0


def main() -> None:
    """Make as many runs as requested."""
    total = int(sys.argv[1])
    bad, shares, short = 0, 0.0, list[tuple[float, float, int]]()
    for seed in range(total):
        done = Backlog(seed, fixed=seed % 2 == 1).run()
        share = done.share()
        shares += share
        if share < LEAST:
            short.append((share, done.share(0), seed))
        for line in done.over():
            bad += 1
            print(line, flush=True)
    print(f"{total} runs, {bad} over a limit, {shares / total:.4f} of the oracle, {len(short)} below {LEAST}")
    print(sorted(short)[:5])
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

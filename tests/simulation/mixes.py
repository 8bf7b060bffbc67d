"""The mixes of faults: which faults happen, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often each fault happens. Every mix also has pauses, cancelled jobs, closed handles and so on."""

    slow: float = 0.0
    """The share of messages that take 0.1 to 2.5 s longer."""
    lost: float = 0.0
    """The share of requests, of answers, and of wake-ups that are lost."""
    again: float = 0.0
    """The share of requests that reach the store twice, the second time up to 2 s later."""
    outages: int = 0
    """The maximum number of outages of each process's connection to the store."""
    away: tuple[float, float] = (0.05, 8)
    """How long an outage lasts, in seconds."""
    stalls: int = 0
    """The maximum number of stalls of each process."""
    interrupted: float = 0.0
    """The chance that a process stops around the time of a grant to it, for up to three intervals."""
    taken: float = 0.0
    """The share of time in which a process is not scheduled: it runs in turns for the rest."""
    late: float = 0.0
    """The maximum lateness of timers, in intervals. 0: up to 2 ms."""
    crashes: float = 0.0
    """The chance that a process dies."""
    steps: int = 0
    """The maximum number of steps of the store's clock, forward or back."""
    step: tuple[float, float] = (0.05, 5)
    """The size of a step, in seconds."""
    losses: int = 0
    """The maximum number of times that the store falls back to an older copy, or to no records."""
    interval: tuple[float, float] = (0.05, 2.0)
    """The range of the interval, in seconds."""
    jobs: tuple[int, int] = (4, 41)
    """The range of the number of jobs."""
    near: bool = False
    """Whether all processes are close to the store."""
    comes: tuple[str, ...] = ("slot", "run")
    """With `near`: the methods by which jobs are added that follow each other closely."""
    way: tuple[float, float] | None = None
    """The range of the one-way latency, in seconds. None: 0.1 ms to 40 ms."""
    bursts: tuple[int, ...] = ()
    """Bursts to choose from. Empty: mostly 1, sometimes 2 or 3."""
    limited: float = 0.2
    """The chance that the queue has `max_running`."""
    takes: tuple[float, float] | None = None
    """The range of the run time of jobs, in seconds. None: at most a few intervals."""
    ppm: float = 200.0
    """How fast or slow clocks run at most, in parts per million."""
    changes: int = 0
    """The maximum number of changes of interval, burst and limit, besides those in every mix."""
    loops: int = 0
    """The maximum number of additional processes that join and die soon."""
    callers: tuple[int, ...] = ()
    """How many callers a process may have. A caller requests its next slot when its last job has ended."""
    thinks: tuple[float, float] = (0.0, 0.0)
    """How long a caller pauses between two jobs, in intervals."""
    threads: float = 0.0
    """The share of jobs that are plain functions, which begin in a thread."""
    lags: float = 0.0
    """How late these threads wake at most, in intervals."""
    slow_threads: float = 0.0
    """How long it takes at most until one of these threads runs that is handed its slot, in intervals."""
    busy: float = 0.0
    """For how long a process is stopped after each answer, at most, in intervals: its event loop is busy."""
    cancelled: float = 0.06
    """The share of jobs that are cancelled after a while, unless they have begun."""
    lookaheads: tuple[int | None, ...] = (1, 3, 16, None)
    """The values of `lookahead` to choose from."""
    withdrawn: float = 0.0
    """The chance that a job of a process is cancelled around the time of a grant to it."""
    reclaimed: float = 0.0
    """The chance that all tickets are reclaimed, or the interval grows, around the time of a grant."""
    new: float = 0.0
    """The chance that a process that joins creates its handle with `new=True`."""
    closes: float = 0.05
    """The chance that a handle is closed while the others go on."""
    exits: bool = False
    """Whether a process ends once its handle is closed, as at the end of a program."""
    verbs: bool = True
    """Whether queues are paused, cooled down, reconfigured and so on."""
    tolerances: tuple[float, float] | None = None
    """The range of the tolerance, in intervals. None: some queues have one, from a wide range."""
    strict: float = 0.0
    """The share of handles with `strict=True`."""
    measured: float = 0.0
    """How long the store's driver is busy before sending and after receiving, at most, in seconds. If not 0,
    it reports the times of sending and receiving (`Answer.trip`)."""
    longer: float = 1.0
    """The factor by which the run is longer than the jobs need at the interval."""
    deadlines: bool = False
    """Whether most jobs must begin in time."""
    blur: float = 0.0
    """By how much the store may misread its clock, in seconds; its answers say so."""
    exact: bool = False
    """Whether processes have exact timers, and time passes while they read their clocks, as in real ones."""
    joins: bool = False
    """Whether handles have different settings, and some of them are started later."""
    windows: bool = False
    """Whether queues also have limits, and jobs settle later what they really took of these."""


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
    "frail": Mix(lost=0.08, losses=1, limited=1.0, takes=(0.1, 20.0), jobs=(8, 20), interval=(0.05, 0.5)),
    "backlog": Mix(
        lookaheads=(1, 1, 1, 3, 16, None),
        interval=(0.02, 0.5),
        jobs=(20, 80),
        verbs=False,
        cancelled=0.0,
        limited=0.0,
    ),
    "rows": Mix(
        interrupted=0.4,
        threads=0.1,
        interval=(0.001, 0.008),
        jobs=(40, 100),
        near=True,
        comes=("add", "run", "slot"),
        bursts=(1,),
        lookaheads=(16, None),
        limited=0.0,
    ),
    "far": Mix(
        way=(0.005, 0.06),
        interval=(0.3, 4.0),
        tolerances=(0.002, 0.04),
        strict=0.3,
        jobs=(20, 50),
        stalls=1,
        steps=1,
        bursts=(1, 1, 2),
    ),
    "gone": Mix(outages=2, away=(40.0, 200.0), closes=0.1, limited=0.1, jobs=(8, 30)),
    "windows": Mix(
        windows=True,
        longer=4.0,
        interval=(0.002, 0.2),
        jobs=(20, 100),
        takes=(0.0, 0.4),
        bursts=(1, 1, 2, 5),
        slow=0.02,
        lost=0.06,
        again=0.05,
        stalls=1,
        crashes=0.1,
        closes=0.1,
        steps=1,
    ),
    "settled": Mix(
        windows=True,
        longer=3.0,
        interval=(0.2, 1.0),
        jobs=(20, 60),
        takes=(0.0, 0.4),
        bursts=(1, 1, 2, 5),
        lost=0.12,
        outages=1,
        limited=0.0,
        cancelled=0.0,
        verbs=False,
    ),
    "deadlines": Mix(
        deadlines=True,
        interval=(0.02, 2.0),
        jobs=(15, 60),
        bursts=(1, 1, 1, 2, 5),
        limited=0.1,
        threads=0.05,
    ),
    "budgets": Mix(
        deadlines=True,
        windows=True,
        longer=3.0,
        interval=(0.02, 0.5),
        jobs=(15, 60),
        bursts=(1, 1, 2),
        limited=0.0,
        takes=(0.0, 0.4),
    ),
    "hurry": Mix(
        deadlines=True,
        interval=(0.02, 1.0),
        jobs=(15, 50),
        slow=0.02,
        lost=0.04,
        again=0.03,
        outages=1,
        stalls=1,
        crashes=0.1,
        closes=0.1,
        steps=1,
    ),
    "drowsy": Mix(
        late=3.0,
        interval=(0.01, 0.1),
        jobs=(80, 160),
        near=True,
        limited=0.0,
        cancelled=0.0,
        verbs=False,
        tolerances=(0.02, 0.5),
    ),
    "blocked": Mix(
        taken=0.8, busy=0.4, interval=(0.01, 0.2), jobs=(80, 160), near=True, limited=0.0, verbs=False
    ),
    "lags": Mix(
        threads=0.4,
        lags=1.0,
        slow_threads=0.3,
        interval=(0.05, 0.5),
        jobs=(10, 40),
        near=True,
        limited=0.0,
        cancelled=0.0,
        verbs=False,
    ),
    "handed": Mix(
        threads=0.6,
        lags=1.0,
        slow_threads=1.0,
        withdrawn=0.1,
        interval=(0.05, 0.5),
        jobs=(10, 40),
        near=True,
        limited=0.2,
        closes=0.2,
    ),
    "debts": Mix(
        windows=True,
        outages=2,
        away=(40.0, 200.0),
        closes=0.2,
        interval=(0.2, 1.0),
        jobs=(10, 30),
        takes=(0.0, 2.0),
        limited=0.0,
    ),
    "returns": Mix(
        windows=True,
        threads=0.6,
        lags=0.5,
        slow_threads=0.3,
        longer=3.0,
        interval=(0.02, 0.5),
        jobs=(15, 50),
        takes=(0.0, 0.4),
        bursts=(1, 1, 2),
        lost=0.03,
        limited=0.0,
        closes=0.1,
    ),
    "brisk": Mix(
        callers=(1, 2, 8),
        thinks=(0.0, 1.0),
        late=3.0,
        interval=(20e-6, 100e-6),
        jobs=(40, 100),
        near=True,
        way=(1e-6, 1e-5),
        bursts=(5, 20, 50),
        limited=0.0,
        closes=0.4,
    ),
    "reclaims": Mix(
        reclaimed=0.3,
        new=0.5,
        interval=(0.001, 0.05),
        jobs=(20, 60),
        near=True,
        way=(0.0001, 0.002),
        comes=("slot", "run", "add"),
        bursts=(1, 1, 2, 5),
        limited=0.2,
    ),
    "exact": Mix(
        exact=True,
        blur=0.0001,
        late=0.3,
        interval=(0.0005, 0.01),
        tolerances=(0.02, 0.3),
        jobs=(40, 100),
        near=True,
        way=(5e-5, 3e-4),
        comes=("slot", "run", "add"),
        bursts=(1, 1, 1, 2, 5),
        limited=0.1,
        threads=0.1,
        closes=0.1,
    ),
    "joins": Mix(
        joins=True,
        lost=0.02,
        interval=(0.02, 0.5),
        limited=0.3,
        takes=(0.0, 0.5),
        closes=0.3,
        changes=1,
        losses=1,
        longer=1.5,
    ),
    "all": Mix(slow=0.03, lost=0.06, outages=1, stalls=1, crashes=0.2, steps=1, losses=2),
}
"""The mixes by name."""

CHANGES: Final = {"configure": "interval", "burst": "burst", "limit": "max_running"}
"""The verbs that change a setting, each with the setting."""

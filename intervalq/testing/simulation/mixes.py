"""The mixes of faults: how often which of them happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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
    away: tuple[float, float] = (0.05, 8)
    """For how long, in seconds."""
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
    reclaimed: float = 0.0
    """The chance of a grant that all tickets are reclaimed, or a longer interval is set, around then."""
    new: float = 0.0
    """The chance of a process that joins to make its handle for a queue that is not there yet."""
    closes: float = 0.05
    """The chance of a handle to be closed while the others go on."""
    exits: bool = False
    """A process is no more once its handle is closed, as at the end of a program."""
    verbs: bool = True
    """Whether queues are paused, cooled down, reconfigured and so on."""
    tolerances: tuple[float, float] | None = None
    """Between which shares of the interval the tolerance lies; None: it is given now and then, and is any."""
    strict: float = 0.0
    """The share of handles that wait until a slot has surely come."""
    measured: float = 0.0
    """A store's driver says when it sent and received, and takes up to so many seconds beside that."""
    longer: float = 1.0
    """How many times as long faults go on as the interval alone would make the jobs last."""
    windows: bool = False
    """Queues have windows beside their interval, and jobs take units of them that are settled later."""


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
    "all": Mix(slow=0.03, lost=0.06, outages=1, stalls=1, crashes=0.2, steps=1, losses=2),
}
"""The mixes by name."""

CHANGES: Final = {"configure": "interval", "burst": "burst", "limit": "max_running"}
"""The verbs that change a setting, and which."""

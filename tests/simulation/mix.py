"""What a mix of faults and users is made of."""

from __future__ import annotations

from dataclasses import dataclass


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
    shut: bool = False
    """Whether handles are closed while their jobs wait, and more jobs come just as those begin."""
    hours: bool = False
    """Whether the queue has hours, which end in the run for a minute."""
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
    overruns: float = 0.1
    """With `windows`: the share of settled units of which a job takes more than its estimate."""
    pauses: int = 0
    """The maximum number of additional pauses, by an operator."""
    subscribes: float = 0.0
    """How long it takes until a process that listens for wake-ups gets them, in seconds."""

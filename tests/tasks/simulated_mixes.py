"""The mixes of faults and users that simulated workers meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mix:
    """The faults of a run, and how many."""

    lost: float = 0.0
    """The share of messages that get lost."""
    slow: float = 0.0
    stalls: float = 0.0
    """How many of the processes of a run."""
    crashes: float = 0.0
    cuts: float = 0.0
    stops: float = 0.0
    """How many times workers are stopped in an orderly way, or cancelled, while there is work."""
    closes: float = 0.0
    """How many times the handles of running workers are closed."""
    exits: float = 0.0
    """The probability that a function ends its process by `SystemExit`."""
    user_processes: int = 0
    """In how many processes tasks are claimed by hand."""
    beside: bool = False
    """Whether tasks are claimed by hand in the processes of workers, too, with the same handle."""
    poison: int = 0
    """How many tasks kill their worker."""
    cancels: int = 0
    """How many times an operator cancels tasks; functions snooze now and then, too."""
    chunks: bool = False
    """Whether there are tasks that are done in chunks, too."""
    users: int = 1
    """How many users a handle has by which tasks are claimed by hand; any of them may close it."""
    fetches: bool = False
    """Whether these users fetch several tasks at once, too, as one pull consumer."""
    reports: bool = False
    """Whether functions report on their work, with checkpoints."""
    pulls: bool = False
    """Whether callers wait at the store, and it forgets the claims of silent sessions."""
    guards: bool = False
    """Whether the store notices at once that a process is dead."""
    refusals: float = 0.0
    """How many times the store refuses a process for a while, as if it had no rights."""
    outages: float = 0.0
    """How many times the store can't be reached by the process of a user, for a while."""
    patience: float = 60.0
    """For how many seconds tasks wait for one that is to run alone, and it for them."""

    def faults(self) -> dict[str, float]:
        """How many times each fault happens to the processes of a run, for each of them."""
        faults = {"stall": self.stalls, "crash": self.crashes, "cut": self.cuts, "stop": self.stops}
        return faults | {"refuse": self.refusals, "close": self.closes, "away": self.outages}


MIXES = {
    "calm": Mix(),
    "lossy": Mix(lost=0.05, slow=0.05),
    "stalls": Mix(stalls=4, slow=0.02),
    "crashes": Mix(crashes=2, poison=1),
    "stops": Mix(stops=3, closes=1, exits=0.01),
    "hands": Mix(user_processes=3),
    "hands-beside": Mix(user_processes=1, beside=True, stops=3),
    "operators": Mix(cancels=6),
    "operators-lossy": Mix(lost=0.05, slow=0.02, stalls=1, crashes=1, cancels=6),
    "chunks": Mix(chunks=True),
    "chunks-cancelled": Mix(chunks=True, cancels=6),
    "chunks-lossy": Mix(lost=0.05, slow=0.03, stalls=1, crashes=1, stops=0.5, exits=0.01, chunks=True),
    "users": Mix(user_processes=2, users=3, fetches=True, reports=True),
    "reports": Mix(lost=0.04, slow=0.02, crashes=1, user_processes=1, reports=True),
    "pulls": Mix(user_processes=3, users=2, stops=2, fetches=True, pulls=True),
    "pulls-stalled": Mix(stalls=6, refusals=2, chunks=True, user_processes=2, pulls=True),
    "pulls-away": Mix(outages=4, user_processes=3, users=3, pulls=True),
    "hands-away": Mix(outages=3, refusals=1, user_processes=3, users=2),
    "guards": Mix(crashes=3, stops=1, guards=True),
    "refused": Mix(refusals=3, user_processes=2, users=2),
    "refused-lone": Mix(refusals=6, crashes=3, chunks=True, poison=1),
    "lone-chunks": Mix(chunks=True, crashes=3),
    "patient": Mix(crashes=5, patience=1.0),
    "lone-cut": Mix(chunks=True, crashes=3, cuts=5, stops=3, poison=2),
    "lone": Mix(crashes=3, stalls=6, stops=3, poison=2),
    "lone-lapsed": Mix(crashes=4, cuts=8, stops=4, poison=2),
    "all": Mix(
        lost=0.03, slow=0.03, stalls=2, crashes=1, cuts=1, stops=0.5, exits=0.01, user_processes=1, poison=1
    ),
}

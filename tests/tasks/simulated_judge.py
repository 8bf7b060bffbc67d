"""The judge of simulated workers: checks which function ran when, by the promises in docs/tasks.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from intervalq.tasks import Claim
from intervalq.tasks.rules import Beat, Beaten, Begin, Command, Modified, Modify, Row, Work, Worked
from intervalq.testing.simulation.loop import Process

STALE = 2.0
"""Seconds after which a task that was claimed ahead should have been given back. Workers do so after one
second, and check now and then.
"""

NOTICE = 1.0
"""Seconds after which the store knows that a task has begun."""

PROMPT = 0.25
"""Seconds after which a task that is to run alone begins, once nothing else of its process runs."""

NOTICED = 10.0
"""Seconds, besides the expiry, until a function that lost its task is cancelled: time-outs, a heartbeat."""


class Books(Protocol):
    """The state of the store, which the judge reads."""

    violations: list[str]

    def broken(self, text: str) -> None:
        """Note that a promise was broken."""
        ...

    def row(self, id_: str) -> Row | None:
        """A task as stored."""
        ...


@dataclass(slots=True, eq=False)
class Call:
    """One call of a worker's function."""

    process: Process
    group: str
    claim: Claim
    session: str | None
    began: float
    lost: float | None = None
    """When its session was removed."""
    settles: bool = False
    """Whether the function settles the task itself, and may go on with others of its chunk."""


@dataclass(slots=True)
class Seat:
    """The limits of one process, and when it was disturbed."""

    many: dict[str, int] = field(default_factory=dict)
    """How many calls of each function it may run at a time."""
    stopped: float | None = None
    """When its workers were told to stop."""
    idle: float = 0.0
    """When the last call ended."""
    back: float = 0.0
    """When it resumed after a stall, or could reach the store again after a partition."""


class Judge:
    """Is notified of all events of a run.

    Args:
        books: the state of the store, and where violations are noted.
        now: true time, in seconds.
        calm: whether all messages arrive soon, and live processes run.
    """

    def __init__(self, books: Books, now: Callable[[], float], *, calm: bool) -> None:
        self.books = books
        self.now = now
        self.calm = calm
        self.is_paced = False
        """Whether some functions wait for slots; they count as running, which the judge can't see."""
        self.seats: dict[Process, Seat] = defaultdict(Seat)
        self.running: list[Call] = []
        self.began: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.unsure: set[str] = set()
        """Tasks whose number of attempts is unknown."""
        self.waited = 0.0
        """Seconds for which tasks without a key were ready before they began."""
        self._settled = Counter[tuple[str | None, str]]()
        """How many settlements of a task the store has done, by session; renewals, too."""
        self._sessions: dict[str, Process] = {}
        self._claimed: dict[str, float] = {}

    def broken(self, text: str) -> None:
        """Note that a promise was broken."""
        self.books.broken(text)

    # --- what functions see ---------------------------------------------------------------------------

    def begins(self, process: Process, group: str, claim: Claim, *, paced: bool = False) -> Call:
        """Check the start of a worker's function."""
        row = self.books.row(claim.id)
        call = Call(process, group, claim, claim._row.session, self.now())
        self._beside(call)
        if self.calm:
            self._claim(call, row, paced=paced)
        self.began[claim.id] += 1
        self.running.append(call)
        if row is not None and row.key is None:
            self.waited += max(0.0, self.now() - max(0.0, row.at / 1e6 - 1000))
        return call

    def _beside(self, call: Call) -> None:
        """Check that no more functions run together than allowed, and none beside one that must run alone."""
        who, seat = call.process.name, self.seats[call.process]
        beside = [each for each in self.running if each.process is call.process]
        count = sum(each.group == call.group for each in beside) + 1
        if count > seat.many.get(call.group, count):
            self.broken(f"{who} runs {count} tasks of {call.group}, {seat.many[call.group]} may run")
        if beside and (call.claim._row.alone or any(each.claim._row.alone for each in beside)):
            names = [each.claim.value for each in [*beside, call] if each.claim._row.alone]
            self.broken(f"{who} runs {names} beside others, and they are to run alone")
        if seat.stopped is not None and self.now() > max(seat.stopped, seat.back) + 0.001:
            self.broken(f"{who} begins {call.claim.value}, and was stopped at {seat.stopped:.6f}")

    def _claim(self, call: Call, row: Row | None, *, paced: bool) -> None:
        """Check that the process has claimed the task, and that its number of attempts is right."""
        claim, who = call.claim, call.process.name
        if row is None or row.session != claim._row.session:
            self.broken(f"{who} begins {claim.value}, which is not claimed by it")
            return
        if claim._row.alone and not row.begun:
            self.broken(f"{who} begins {claim.value} alone, and has not told the store")
        since = max(self._claimed[claim.id], self.seats[call.process].idle)
        if claim._row.alone and not self.is_paced and self.now() - since > PROMPT:
            self.broken(f"{who} begins {claim.value} alone, and nothing has run since {since:.6f}")
        beside = [(each.claim.queue, each.claim.key) for each in self.running if not each.settles]
        if claim.key is not None and (claim.queue, claim.key) in beside:
            self.broken(f"{who} begins {claim.value}, and another one of {claim.key} runs")
        if claim.id not in self.unsure and claim.attempt != 1 + self.failed[claim.id]:
            self.broken(f"attempt {claim.attempt} of {claim.value}: {self.failed[claim.id]} have failed")
        if not (paced or claim._row.alone) and self.now() - self._claimed[claim.id] > STALE:
            self.broken(f"{who} begins {claim.value}, which it claimed at {self._claimed[claim.id]:.6f}")

    def ends(self, call: Call, *, failed: bool, over: bool) -> None:
        """Check the end of a worker's function, unless the run is over: then any may be cancelled."""
        self.running.remove(call)
        self.seats[call.process].idle = self.now()
        if over:
            return
        claim, now = call.claim, self.now()
        self.failed[claim.id] += failed
        row = self.books.row(claim.id)
        mine = row is not None and row.session == call.session and row.version == claim._row.version
        if self.calm and mine and row is not None and not row.begun and now - call.began > NOTICE:
            self.broken(f"{claim.value} ran for {now - call.began:.6f} s, and the store knows of no attempt")
        since = max(call.lost or now, self.seats[call.process].back)
        if now - since > NOTICED:
            self.broken(
                f"{call.process.name} ran {claim.value} for {now - since:.6f} s more after it was lost"
            )

    @contextmanager
    def settles(self, process: Process, claim: Claim) -> Iterator[None]:
        """Check that a claim which is settled or renewed without an error is so in the store."""
        place = claim._row.session, claim.id
        before = self._settled[place]
        yield
        if self.calm and self._settled[place] == before:
            self.broken(f"{process.name} has settled {claim.value}, as it was told, and the store has not")

    def dies(self, process: Process) -> None:
        """Note that a process has died; what it ran may or may not count as failed."""
        self.unsure.update(call.claim.id for call in self.running if call.process is process)
        held = {id_ for id_, who in self._sessions.items() if who is process}
        self.unsure.update(row.id for row in self._rows() if row.session in held)
        self.running = [call for call in self.running if call.process is not process]

    def _rows(self) -> list[Row]:
        return [row for id_ in list(self._claimed) if (row := self.books.row(id_)) is not None]

    # --- what the store sees ----------------------------------------------------------------------------

    def saw(self, process: Process, command: Command[Any], answer: object) -> None:
        """Check a command that the store has done."""
        now = self.now()
        if isinstance(command, Begin):
            self._sessions[command.session.id] = process
        elif isinstance(command, Beat) and isinstance(answer, Beaten):
            for id_ in answer.lapsed:
                self._removed(id_)
        elif isinstance(command, Work) and isinstance(answer, Worked):
            self._settled.update(
                (command.session, part.id) for part in command.settled if part.id not in answer.lost
            )
            for row in answer.claimed:
                self._claimed[row.id] = now
                if process.dead:
                    self.unsure.add(row.id)
            if self.calm and not process.dead and (answer.lost or not answer.alive):
                # A missing task was done: its worker was cancelled before it learned of that.
                lost = [id_ for id_ in answer.lost if id_ not in self.unsure and self.books.row(id_)]
                if lost or not answer.alive:
                    self.broken(f"{process.name} has lost {lost}, and nothing was in its way")

        elif isinstance(command, Modify) and isinstance(answer, Modified):
            self._settled.update((command.session, delete.id) for delete in command.deletes)
            self._settled.update((command.session, change.id) for change in command.changes)

    def _removed(self, session: str) -> None:
        process = self._sessions[session]
        if self.calm and not process.dead:
            self.broken(f"{process.name} was taken for dead")
        for call in self.running:
            if call.session == session:
                call.lost = self.now()

    def sessions_of(self, process: Process) -> set[str]:
        """All sessions that a process has had."""
        return {id_ for id_, who in self._sessions.items() if who is process}

    def has(self, process: Process, sessions: set[str]) -> bool:
        """Whether a process still has one of the existing sessions."""
        return any(self._sessions.get(id_) is process for id_ in sessions)

"""The judge of simulated workers: checks which function ran when, by the promises in docs/tasks.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from intervalq.errors import ClaimLost
from intervalq.tasks import Claim
from intervalq.tasks.rules import (
    Beat,
    Beaten,
    Begin,
    Change,
    Command,
    Delete,
    End,
    Modified,
    Modify,
    Row,
    Work,
    Worked,
)
from simulation.loop import Process

STALE = 2.0
"""Seconds after which a task that was claimed ahead should have been given back. Workers do so after one
second, and check now and then.
"""

NOTICE = 1.0
"""Seconds after which the store knows that a task has begun."""

PROMPT = 0.25
"""Seconds after which a task that is to run alone begins, once nothing else of its process runs."""

GROUPS = {"a": "ab", "b": "ab", "m": "m", "q": "q"}
"""The functions that aren't paced, by queue."""

WAITS = 2.0
"""Seconds for which a task waits at most although a worker would run it."""

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

    def rows(self) -> list[Row]:
        """All tasks as stored."""
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
    full: dict[str, float] = field(default_factory=dict)
    """When a call of each function ended last."""
    started: float = 0.0
    """When its workers were started."""
    stopped: float | None = None
    """When its workers were told to stop."""
    idle: float = 0.0
    """When the last call ended."""
    back: float = 0.0
    """When it resumed after a stall, or could reach the store again after a partition."""
    is_paced: bool = False
    """Whether some functions wait for slots; they count as running, which the judge can't see."""
    holds: Callable[[str, Row], bool] | None = None
    """Whether the process still has a claim for sure; None: always."""


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
        self.patience = 60.0
        """For how many seconds tasks wait for one that is to run alone, and it for them."""
        self.alone_until: dict[Process, float] = {}
        """When the last task that ran alone ended."""
        self.looks: list[Callable[[], None]] = []
        """Called at each look."""
        self.checkpoints: dict[str, int] = {}
        """The last checkpoint of each task."""
        self._unclear: set[str] = set()
        """Tasks of which a report may have been stored, as far as is known."""
        self._worked: dict[str, float] = {}
        """When the last call that was answered was sent, by session."""
        self._ran: set[tuple[str | None, str]] = set()
        """The tasks that functions were called with, by session."""
        self._began: dict[Process, float] = {}
        """When a function was called last."""
        self._sessions: dict[str, Process] = {}
        self._claimed: dict[str, float] = {}
        self._ended: set[str] = set()
        """The sessions that ended in an orderly way."""
        self._alone: dict[str, bool] = {}
        """Whether each task was to run alone when it was claimed last."""
        self._counted: dict[str, float] = {}
        """When the store learned last that a claimed task begins."""

    def broken(self, text: str) -> None:
        """Note that a promise was broken."""
        self.books.broken(text)

    # --- what functions see ---------------------------------------------------------------------------

    def begins(self, process: Process, group: str, claim: Claim, *, paced: bool = False) -> Call:
        """Check the start of a worker's function."""
        row = self.books.row(claim.id)
        call, seat = Call(process, group, claim, claim._row.session, self.now()), self.seats[process]
        self._beside(call)
        if self.calm:
            self._claim(call, row, paced=paced)
        self._checkpoint(claim)
        if seat.holds is not None and not seat.holds(claim._row.session or "", claim._row):
            self.broken(f"{process.name} begins {claim.value}, which others may have by now")
        self._ran.add((call.session, claim.id))
        self._began[process] = self.now()
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
        # It waits for the others for some time, and then they wait for it.
        since = self._claimed.get(call.claim.id, 0.0) if call.claim._row.alone else self.now()
        alone = [call.claim] if self.now() - since < self.patience and beside else []
        alone += [
            each.claim
            for each in beside
            if each.claim._row.alone and self.now() - self._claimed[each.claim.id] < 2 * self.patience
        ]
        names = [claim.value for claim in alone if claim._row.alone]
        if names:
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
        is_free = not any(each.process is call.process for each in self.running)
        if (
            claim._row.alone
            and is_free
            and not self.seats[call.process].is_paced
            and self.now() - since > PROMPT
        ):
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
        self.seats[call.process].idle = self.seats[call.process].full[call.group] = self.now()
        if call.claim._row.alone:
            self.alone_until[call.process] = self.now()
        if over:
            return
        claim, now = call.claim, self.now()
        self.failed[claim.id] += failed
        if claim._row.alone and self.calm:
            self._tired(call)
        row = self.books.row(claim.id)
        mine = row is not None and row.session == call.session and row.version == claim._row.version
        if self.calm and mine and row is not None and not row.begun and now - call.began > NOTICE:
            self.broken(f"{claim.value} ran for {now - call.began:.6f} s, and the store knows of no attempt")
        if (
            mine
            and row is not None
            and not row.begun
            and self._worked.get(call.session or "", 0) > call.began + PROMPT
        ):
            self.broken(f"{claim.value} has begun, and the store was asked since, and not told")
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
        try:
            yield
        except ClaimLost:
            if self.calm and self._settled[place] != before:
                self.broken(f"{process.name} has settled {claim.value}, and is told that it is lost")
            raise
        if self.calm and self._settled[place] == before:
            self.broken(f"{process.name} has settled {claim.value}, as it was told, and the store has not")

    @contextmanager
    def reports(self, claim: Claim, checkpoint: int) -> Iterator[None]:
        """Check that what was reported is what the claim says, and the next attempt."""
        self._unclear.add(claim.id)
        yield
        self._unclear.discard(claim.id)
        self.checkpoints[claim.id] = checkpoint
        self._checkpoint(claim)

    def _checkpoint(self, claim: Claim) -> None:
        known = self.checkpoints.get(claim.id)
        if claim.id not in self._unclear and claim.checkpoint != known:
            self.broken(f"{claim.value} has the checkpoint {claim.checkpoint}, not {known}")

    def _tired(self, call: Call) -> None:
        """Check that others don't wait for ever for a task that runs alone."""
        process, now = call.process, self.now()
        ran = now - call.began
        others = self._began[process] - call.began
        if ran < 2 * self.patience + 2 * WAITS or others > 0 or self.seats[process].stopped is not None:
            return
        for group, row in self._waiting():
            if group != call.group and self._is_free(process, group):
                self.broken(f"{process.name} runs {call.claim.value} for {ran:.6f} s, and {row.json} waits")
                return

    def _waiting(self) -> Iterator[tuple[str, Row]]:
        """The tasks that have been ready for some time and aren't paced, with their functions' groups."""
        before = self.now() - WAITS
        for row in self.books.rows():
            group = GROUPS.get(row.queue)
            if group is not None and row.session is None and max(row.at, row.modified) / 1e6 - 1000 < before:
                yield group, row

    def _is_free(self, process: Process, group: str) -> bool:
        """Whether the process could have begun a task of a group for some time."""
        beside, seat = [each for each in self.running if each.process is process], self.seats[process]
        count = sum(each.group == group for each in beside)
        since = max(seat.started, seat.full.get(group, 0.0))
        return seat.stopped is None and count < seat.many[group] and since < self.now() - WAITS

    def look(self) -> None:
        """Check that no task waits while a worker has been free for some time, and has none to run alone."""
        for look in self.looks:
            look()
        alone = {self._sessions.get(row.session or "") for row in self.books.rows() if row.alone}
        free = [
            process
            for process in self._began
            if self.calm and not process.dead and process not in alone
            if max(self.alone_until.get(process, 0.0), self.seats[process].back) < self.now() - WAITS
        ]
        for group, row in self._waiting() if free else ():
            if any(self._is_free(process, group) for process in free):
                self.broken(f"{row.json} waits, and {[process.name for process in free]} are free")
                return

    def dies(self, process: Process) -> None:
        """Note that a process has died; what it ran may or may not count as failed."""
        self.unsure.update(call.claim.id for call in self.running if call.process is process)
        held = {id_ for id_, who in self._sessions.items() if who is process}
        rows = [row for row in self._rows() if row.session in held]
        for row in rows if self.calm else ():
            since = max(self._counted[row.id], self.seats[process].back)
            # Users begin with what they claim by hand.
            waits = row.begun and (row.session, row.id) not in self._ran and row.queue != "h"
            if waits and self.now() - since > PROMPT:
                self.broken(f"{process.name} dies, and {row.json} is charged, which has not begun")
        self.unsure.update(row.id for row in rows)
        self.running = [call for call in self.running if call.process is not process]

    def _rows(self) -> list[Row]:
        return [row for id_ in list(self._claimed) if (row := self.books.row(id_)) is not None]

    def answered(self, command: Command[Any], sent: float) -> None:
        """Note that the answer to a command has arrived."""
        if isinstance(command, Work) and command.queues:  # others may overtake the one that reports starts
            self._worked[command.session] = max(sent, self._worked.get(command.session, 0.0))

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
            self._counted.update(dict.fromkeys(command.begun, now))
            for part in command.settled if self.calm else ():
                self._alone_and_unused(process, command.session, part)
            self._alone |= {row.id: row.alone for row in answer.claimed}
            for row in answer.claimed:
                self._claimed[row.id] = self._counted[row.id] = now
                if process.dead:
                    self.unsure.add(row.id)
            if self.calm and not process.dead and (answer.lost or not answer.alive):
                # A missing task was done: its worker was cancelled before it learned of that.
                lost = [id_ for id_ in answer.lost if id_ not in self.unsure and self.books.row(id_)]
                if lost or not (answer.alive or command.session in self._ended):
                    self.broken(f"{process.name} has lost {lost}, and nothing was in its way")
        elif isinstance(command, End):
            self._ended.add(command.session)  # a caller that waits at the store hears of it there
        elif isinstance(command, Modify) and isinstance(answer, Modified):
            self._settled.update((command.session, delete.id) for delete in command.deletes)
            self._settled.update((command.session, change.id) for change in command.changes)

    def _alone_and_unused(self, process: Process, session: str, part: Delete | Change) -> None:
        """Check that a task which is to run alone isn't given back while its process does nothing."""
        row, seat = self.books.row(part.id), self.seats[process]
        is_busy = seat.is_paced or any(call.process is process for call in self.running)
        if row is None or row.queue == "h" or is_busy or seat.stopped is not None:
            return
        since = max(self._claimed[part.id], seat.idle)
        is_unused = self._alone.get(part.id, False) and (session, part.id) not in self._ran
        if is_unused and self.now() - since > PROMPT:
            self.broken(f"{process.name} gives back {row.json}, and could run it alone")

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

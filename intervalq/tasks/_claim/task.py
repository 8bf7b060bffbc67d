"""A task as users see it, and a claim: a task that this worker holds and settles once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from intervalq._queue.options import Duration, whole
from intervalq._queue.slot import Slot
from intervalq._spec import codec, parse
from intervalq.errors import ClaimLost, InvalidOption, plain
from intervalq.tasks._claim import progress as _progress
from intervalq.tasks._claim import values as _values
from intervalq.tasks._claim.endings import dead, kept, snoozed, unused, written
from intervalq.tasks._spec.outcome import is_dead
from intervalq.tasks.rules import Change, Delete, Depend, Insert, Kept, Row
from intervalq.tasks.store import Isolation

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers supply it: `Claim` alone is `Claim[Any]`

    V_co = TypeVar("V_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    V_co = TypeVar("V_co", covariant=True)

_MAX_ATTEMPTS: Final = 1 << 30
"""A number that fits into the columns of every store, with room for further attempts."""


class Task(Generic[V_co]):
    """A task as it was when it was read. Times are seconds since 1970 on the store's clock.

    `Task[Car]` is one whose value type checkers take for a `Car`; nothing checks that at run time.
    """

    __slots__ = ("_form", "_row")

    def __init__(self, row: Row, form: _values.Form = _values.USUAL) -> None:
        self._row = row
        """The stored row."""
        self._form = form
        """How the handle reads and writes values."""

    @property
    def id(self) -> str:
        """Its id, which never changes."""
        return self._row.id

    @property
    def version(self) -> int:
        """Its version, which grows at each change."""
        return self._row.version

    @property
    def queue(self) -> str:
        """The queue that it is in."""
        return self._row.queue

    @property
    def key(self) -> str | None:
        """Its exclusive key: one task of a key runs at a time. None: it has none."""
        return self._row.key

    @property
    def value(self) -> V_co:
        """Its value, parsed from JSON at each access, after the handle's codec.

        Raises:
            UnreadableValue: the handle has no codec, or another one, or the value was damaged. In a worker's
                function that is a failed attempt like any other: the task is tried again, here or elsewhere,
                and finally goes to the dead-letter queue.
        """
        row = self._row
        value: V_co = codec.read(self._form.codec, row.json, "task %s of queue %r", row.id, row.queue)
        return value

    @property
    def at(self) -> float:
        """The earliest time to claim it, in seconds since 1970; 0: a plain task, which has no times."""
        return self._row.at / 1e6

    @property
    def priority(self) -> int:
        """Its priority, from -9 to 9: tasks of a higher one are claimed first."""
        return self._row.priority

    @property
    def claims(self) -> int:
        """How many times it was claimed."""
        return self._row.claims

    @property
    def attempt(self) -> int:
        """How many times a worker began with it; the first attempt is 1."""
        return self._row.attempt

    @property
    def error(self) -> str:
        """Why the last attempt failed; empty: none has failed."""
        return self._row.error

    @property
    def created(self) -> float:
        """When it was inserted, in seconds since 1970; 0: a plain task, which has no times."""
        return self._row.created / 1e6

    @property
    def modified(self) -> float:
        """When it was last changed, in seconds since 1970; 0: a plain task, which has no times."""
        return self._row.modified / 1e6

    @property
    def progress(self) -> float | None:
        """The part of the work that is done, from 0 to 1, as reported last; None: nothing was reported."""
        return self._reported.done

    @property
    def note(self) -> str:
        """What its worker last said about the work; empty: nothing."""
        return self._reported.note

    @property
    def checkpoint(self) -> Any:  # noqa: ANN401 - any JSON value
        """What an attempt left for the next one, see `Claim.in_progress`; None: nothing.

        Raises:
            UnreadableValue: as for `value`.
        """
        return _progress.checkpoint_of(self._row.progress, self._form, f"task {self.id}")

    @property
    def _reported(self) -> _progress.Report:
        return _progress.read(self._row.progress, f"task {self.id}")

    @property
    def claimant(self) -> str | None:
        """The session that has claimed it; None: nobody."""
        return self._row.session

    def change(
        self,
        value: object = ...,
        *,
        queue: str | None = None,
        at: float | datetime | None = None,
        delay: Duration | None = None,
        attempt: int | None = None,
        error: str | None = None,
        priority: int | None = None,
    ) -> Change:
        """A change of some of its fields; the others stay. The change ends any claim of the task.

        Args:
            value: any JSON value.
            queue: the queue to move it to. If it leaves a dead-letter queue, its attempts are counted anew.
            at: not before this time: seconds since 1970, or a datetime with a time zone.
            delay: instead of `at`, a duration from now.
            attempt: how many attempts it has had.
            error: why the last attempt failed.
            priority: as for `Tasks.new`.

        Raises:
            InvalidName, InvalidTask, InvalidInterval, InvalidOption: an argument is wrong.
        """
        if at is not None and delay is not None:
            raise InvalidOption("give at= or delay=, not both: each says when the task may be claimed")
        if attempt is not None:
            whole("attempt", attempt, 0, _MAX_ATTEMPTS)
        elif queue is not None and is_dead(self.queue) and not is_dead(queue):
            attempt = 0
        return Change(
            self.id,
            self.version,
            queue=None if queue is None else _values.queue_name(queue),
            json=None if value is ... else _values.encode(value, self._form),
            at=None if at is None else _values.instant(at),
            delay=None if delay is None else parse.duration(delay, what="delay"),
            attempt=attempt,
            error=None if error is None else _values.error_text(error),
            priority=None if priority is None else _values.checked_priority(priority),
        )

    def delete(self) -> Delete:
        """The removal of this task."""
        return Delete(self.id, self.version)

    def depend(self) -> Depend:
        """The condition that this task exists at this version, without which nothing is changed."""
        return Depend(self.id, self.version)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {plain(self.id)} of {self.queue!r}, version {self.version}>"


class Holder(Protocol):
    """What a claim needs from its session, and the notices that it sends to it."""

    @property
    def form(self) -> _values.Form:
        """How values are written and read."""
        ...

    async def settle(self, claim: Claim, part: Delete | Change) -> None:
        """Settle a claim, and wait until that is done."""
        ...

    async def renew(
        self, claim: Claim, lease: int | None, report: Callable[[str], str] | None = None
    ) -> None:
        """See `Claim.in_progress`."""
        ...

    async def renewed(self, claim: Claim) -> None:
        """Wait for a renewal in flight, to know the version after it."""
        ...

    async def ack_with(self, claim: Claim, changes: Sequence[Insert | Change | Delete | Depend]) -> None:
        """See `Claim.ack`."""
        ...

    def settled(self, claim: Claim) -> None:
        """Note that a change of tasks by the user settled the claim."""
        ...

    def changed(self, claim: Claim, row: Row) -> None:
        """Note that a change of tasks by the user changed the task, which is still claimed."""
        ...

    def commit(self, claims: Sequence[Claim], isolation: Isolation) -> AbstractAsyncContextManager[Any]:
        """See `Claim.commit`."""
        ...


class Claim(Task[V_co]):
    """A task that this process has claimed, until it settles it, its session expires, or its lease ends.

    Settle it once: with `ack`, `nak`, `snooze`, `term`, `release` or `commit`. All of them raise `ClaimLost`
    if the task is no longer this session's or was already settled; then nothing was done.
    """

    __slots__ = (
        "_arrived", "_began", "_keep_for", "_lease", "_on_lost", "_result", "_session", "_since", "_slot",
        "open",
    )  # fmt: skip

    _range: Any = None
    """For a plain task, the range that it was claimed with, see `PlainClaim`; None: an ordinary task."""

    def __init__(self, row: Row, session: Holder) -> None:
        self._row = row  # not by the base's constructor, which would be slower: there are very many claims
        self._form = session.form
        self._session = session
        """The session that has claimed it."""
        self.open = True
        """Whether it is still to be settled, as far as this process knows."""
        self._began = row.begun
        """Whether the work on it has begun."""
        self._keep_for = row.keep_for
        """How long its outcome is kept, in microseconds, as the task or its worker says; 0: not at all."""
        self._since: float | None = None
        """When the work on a kept task began, on the session's clock; None: unknown."""
        self._lease: int | None = None
        """The last requested lease, in microseconds; None: as long as the session."""
        self._on_lost: Callable[[], None] | None = None
        """Ends the work on the task when the claim is lost."""

    _slot: Slot | None  # set when a paced task begins
    _result: str  # set when a kept task is acknowledged: the result as JSON text; empty: none
    _arrived: float  # when a worker got it, on the session's clock

    @property
    def slot(self) -> Slot | None:
        """The slot in which it began: `claim.slot.settle(tokens=834)`. None: it isn't paced."""
        return getattr(self, "_slot", None)

    @property
    def attempt(self) -> int:
        """How many times a worker began with it, including this time; the first attempt is 1."""
        return self._row.attempt + (self._began and not self._row.begun)

    async def ack(self, *changes: Insert | Change | Delete | Depend, result: object = None) -> None:
        """Acknowledge the task: remove it, and make the other changes in the same step, all or nothing.

        One of the changes may concern this task itself; then it is changed instead of removed. With
        `ack(claim.change(queue="next"))` it moves on to another queue, where its attempts are counted anew
        and its error is cleared, unless the change sets them or the queue is a dead-letter queue.

        `result` is any JSON value, for the outcome of a kept task; that of other tasks is dropped.

        Raises:
            ClaimLost: it is no longer claimed by this session.
            DependencyError, InboxFull, InvalidTask: the changes can't be made, or the result can't be kept;
                the task is still claimed.
        """
        if self._keep_for:
            self._result = written(result, self._form)
        if changes:
            await self._session.ack_with(self, changes)
        else:
            await self._session.settle(self, self._done())

    async def nak(self, delay: Duration = 0, error: object = "") -> None:
        """Report a failure: the task can be claimed again after `delay`. The attempt counts."""
        await self._session.settle(
            self,
            Change(
                self.id,
                self.version,
                delay=parse.duration(delay, what="delay"),
                attempt=self.attempt,
                error=_values.error_text(error) if error else None,
                kept=self._kept(),
            ),
        )

    async def snooze(self, delay: Duration) -> None:
        """Put the task off: it can be claimed again after `delay`. The attempt doesn't count.

        Its value and its last error stay. In a worker's function, `raise Snooze(delay)` does the same.
        """
        await self._session.settle(self, snoozed(self._row, parse.duration(delay, what="delay")))

    async def release(self) -> None:
        """Give the task back as if it had not been claimed: the attempt doesn't count."""
        await self._session.settle(self, unused(self._row))

    async def term(self, error: object = "terminated") -> None:
        """Give the task up: it goes to the dead-letter queue, with the error."""
        await self._session.settle(self, replace(dead(self._row, error, self.attempt), kept=self._kept()))

    async def in_progress(
        self,
        lease: Duration | None = None,
        *,
        progress: float | None = None,
        note: str | None = None,
        checkpoint: object | EllipsisType = ...,
    ) -> None:
        """Extend the claim, and report on the work, for operators and for the next attempt.

        What isn't given stays as it was reported before, also by an earlier attempt. A report costs one step
        of the store: send one each second rather than for each row.

        Args:
            lease: the claim holds for this time from now. None: as long as the session; with a report, as it
                held before.
            progress: the part of the work that is done, from 0 to 1.
            note: a text, cut to 1,000 characters.
            checkpoint: any JSON value, with the limits of a task's value: `checkpoint` of the next attempt.
                None removes it.

        Raises:
            ClaimLost: the task is no longer this session's.
            InvalidOption, InvalidTask: a report can't be kept; or it is of a plain task in a range.
            UnsupportedOperation: a report, on NATS.
        """
        report = _progress.report(progress, note, checkpoint, self._form)
        micros = None if lease is None else parse.duration(lease, least=1, what="lease")
        if report is not None and lease is None:
            micros = self._lease
        await self._session.renew(self, micros, report)

    def commit(self, isolation: Isolation = "read committed") -> AbstractAsyncContextManager[Any]:
        """Write results in a transaction of the store's database; at its end the task is removed.

        The context gives psycopg's AsyncConnection (Postgres) or sqlite3's Connection (SQLite). The results
        and the removal are committed together or not at all: a worker that has lost its claim writes nothing.

        Raises:
            ClaimLost: at the end; everything was rolled back.
            TransactionConflict: Postgres could not serialize it (possible with "repeatable read" and
                "serializable"), or found a deadlock; all was rolled back, and the task is still claimed.
                In a worker, the function is run again, up to five times.
            UnsupportedOperation: the store has no transactions for its users.
        """
        return self._session.commit((self,), isolation)

    def _done(self) -> Delete:
        """The acknowledgement of the task."""
        return Delete(self._row.id, self._row.version, self._kept())

    def _kept(self) -> Kept | None:
        """What the task's outcome says if it ends now; None: it has none."""
        return kept(self._keep_for, self._since, getattr(self, "_result", "")) if self._keep_for else None

    def _lost(self) -> ClaimLost:
        """The error of a lost claim."""
        return ClaimLost(self.queue, self.id)

    def _lose(self) -> None:
        """Note that the claim is lost."""
        self.open = False
        if self._on_lost is not None:
            self._on_lost()

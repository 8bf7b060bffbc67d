"""The specification of a ledger: which rows were called, by whom, and how they ended. Pure transitions.

A ledger makes the call of a row *effectively once*: a row is claimed before it is called, and its end is
kept. Whoever comes to the row again (a retried task, a speculative copy, a second action, a second run) gets
the end instead of calling again. Processes that claim rows have a *session*, which expires unless they send
commands. A row that an expired session had only claimed is free; one that it had started has an unknown
outcome: a call may have been made whose end nobody knows. `Claim.again` decides what happens to those.

Rows change independently: a command for several rows is one atomic step only for speed.

A store either applies these functions to a book of its own, or repeats them in Lua or SQL; the property suite
in `intervalq.testing` compares the second kind with these functions, answer by answer. All times are whole
microseconds on the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from intervalq._spec.shape import sound, typed
from intervalq.ledger._commands import (
    Answer,
    Beat,
    Cancel,
    Claim,
    Command,
    Count,
    Drop,
    Ended,
    Expire,
    Forget,
    Leave,
    Look,
    Record,
    Release,
    Row,
    Seen,
    Shown,
    Stage,
    Start,
    Summary,
    Verdict,
)

__all__ = [
    "MAX_ROWS",
    "MAX_VALUE",
    "Answer",
    "Beat",
    "Book",
    "Cancel",
    "Claim",
    "Command",
    "Count",
    "Drop",
    "Ended",
    "Expire",
    "Forget",
    "Leave",
    "Look",
    "MemoryBook",
    "Meta",
    "Record",
    "Release",
    "Row",
    "Seen",
    "Shown",
    "Stage",
    "Start",
    "Summary",
    "Verdict",
    "apply",
    "sound",
    "typed",
]

MAX_ROWS: Final = 1_000
"""The maximum number of rows in one command, so that no step blocks a store for long."""

MAX_VALUE: Final = 1 << 20
"""The longest value of a row, in bytes of UTF-8."""

_DONE: Final = ("done", "failed")


@dataclass(slots=True)
class Meta:
    """The data of a ledger besides its rows and sessions."""

    created: int
    expires: int | None = None
    cancelled: bool = False


class Book(Protocol):
    """One ledger, open for one command: a store that applies these rules keeps the changes made in it."""

    meta: Meta | None
    """None: there is no such ledger."""
    sessions: dict[str, int]
    """When each session expires."""

    def get(self, key: str) -> Row | None:
        """The row of a key; None: there is none."""
        ...

    def put(self, key: str, row: Row | None) -> None:
        """Keep a row; None: remove it."""
        ...

    def clear(self) -> None:
        """Remove all rows, the sessions, and the ledger itself."""
        ...

    def page(self, cursor: str, limit: int) -> tuple[list[tuple[str, Row]], str]:
        """Rows from a cursor on, and the cursor of the next page (see `Look`)."""
        ...

    def unfinished(self) -> Iterable[Row]:
        """The rows that have not ended."""
        ...

    def ended(self) -> tuple[int, int]:
        """How many rows are done, and how many failed."""
        ...


@dataclass(slots=True)
class MemoryBook:
    """A book in memory."""

    meta: Meta | None = None
    sessions: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def get(self, key: str) -> Row | None:
        """See `Book.get`."""
        return self.rows.get(key)

    def put(self, key: str, row: Row | None) -> None:
        """See `Book.put`."""
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def clear(self) -> None:
        """See `Book.clear`."""
        self.meta = None
        self.sessions.clear()
        self.rows.clear()

    def page(self, cursor: str, limit: int) -> tuple[list[tuple[str, Row]], str]:
        """See `Book.page`."""
        keys = sorted(key for key in self.rows if key > cursor or not cursor)
        page = [(key, self.rows[key]) for key in keys[:limit]]
        return page, page[-1][0] if len(keys) > limit else ""

    def unfinished(self) -> Iterable[Row]:
        """See `Book.unfinished`."""
        return [row for row in self.rows.values() if row.stage not in _DONE]

    def ended(self) -> tuple[int, int]:
        """See `Book.ended`."""
        stages = [row.stage for row in self.rows.values()]
        return stages.count("done"), stages.count("failed")


def apply(book: Book, command: Command, now: int) -> Answer:
    """Apply one command to a ledger when the store's clock reads `now`."""
    if book.meta is not None and book.meta.expires is not None and book.meta.expires <= now:
        book.clear()
    found = book.meta is not None
    if isinstance(command, Drop):
        book.clear()
        return Answer(now, found)
    if isinstance(command, Claim | Record | Beat) and book.meta is None:
        book.meta = Meta(now)
    if book.meta is None:
        return Answer(now, found=False, verdicts=_verdicts_of_none(command))
    _sessions(book, command, now)
    if isinstance(command, Cancel):
        book.meta.cancelled = command.on
    elif isinstance(command, Expire):
        book.meta.expires = command.at
    return _rows(book, command, Answer(now, found=True, cancelled=book.meta.cancelled))


def _rows(book: Book, command: Command, answer: Answer) -> Answer:
    """Apply a command to the rows."""
    now = answer.now
    match command:
        case Claim(keys=keys):
            answer = answer._replace(verdicts=tuple(_claim(book, key, command, now) for key in keys))
        case Start(keys=keys):
            answer = answer._replace(verdicts=tuple(_start(book, key, command, now) for key in keys))
        case Record(rows=ends):
            answer = answer._replace(verdicts=tuple(_record(book, end, command, now) for end in ends))
        case Release(keys=keys):
            answer = answer._replace(removed=sum(_release(book, key, command.session) for key in keys))
        case Forget(keys=keys):
            answer = answer._replace(removed=sum(_forget(book, key, command.shown) for key in keys))
        case Look():
            page, cursor = book.page(command.cursor, command.limit)
            seen = tuple(Seen(key, _shown(book, r), r.attempt, r.value, r.at) for key, r in page)
            answer = answer._replace(rows=seen, cursor=cursor)
        case Count():
            answer = answer._replace(summary=_summary(book))
    return answer


def _sessions(book: Book, command: Command, now: int) -> None:
    """Remove expired sessions, then renew or end the one of the command."""
    for session in [session for session, until in book.sessions.items() if until <= now]:
        del book.sessions[session]
    if isinstance(command, Claim | Start | Record | Beat):
        book.sessions[command.session] = now + command.expiry
    elif isinstance(command, Leave):
        book.sessions.pop(command.session, None)


def _verdicts_of_none(command: Command) -> tuple[Verdict, ...]:
    """The answer to `Start` if the ledger is gone: the rows' claims are lost."""
    return tuple(Verdict("busy") for _ in command.keys) if isinstance(command, Start) else ()


def _verdict(book: Book, row: Row, *, again: bool) -> Verdict | None:
    """What to do about a row that the asking session doesn't hold; None: it may be claimed."""
    if row.stage in _DONE:
        return Verdict("known", row.attempt, row.value, row.stage == "failed")
    if row.session in book.sessions:
        return Verdict("busy", row.attempt)
    if row.stage == "started" and not again:
        return Verdict("unknown", row.attempt)
    return None


def _claim(book: Book, key: str, command: Claim, now: int) -> Verdict:
    row = book.get(key)
    if row is not None and row.session == command.session and row.stage not in _DONE:
        return Verdict("mine", row.attempt)  # an answer was lost
    verdict = None if row is None else _verdict(book, row, again=command.again)
    if verdict is not None:
        return verdict
    assert book.meta is not None
    if book.meta.cancelled:
        return Verdict("busy")
    attempt = 1 if row is None else row.attempt + 1
    book.put(key, Row("started" if command.started else "claimed", command.session, attempt, "", now))
    return Verdict("mine", attempt)


def _start(book: Book, key: str, command: Start, now: int) -> Verdict:
    row = book.get(key)
    if row is None:
        return Verdict("busy")  # it was forgotten in the meantime: claim it again
    if row.session != command.session or row.stage in _DONE:
        return _verdict(book, row, again=False) or Verdict("busy")
    assert book.meta is not None
    if book.meta.cancelled:
        return Verdict("busy")
    if row.stage == "claimed":
        book.put(key, row._replace(stage="started", at=now))
    return Verdict("mine", row.attempt)


def _record(book: Book, end: Ended, command: Record, now: int) -> Verdict:
    row = book.get(end.key)
    if row is not None and row.stage in _DONE:
        return Verdict("known", row.attempt, row.value, row.stage == "failed")
    attempt = 1 if row is None else row.attempt
    book.put(end.key, Row("failed" if end.failed else "done", command.session, attempt, end.value, now))
    return Verdict("known", attempt, end.value, end.failed)


def _release(book: Book, key: str, session: str) -> bool:
    row = book.get(key)
    if row is None or row.session != session or row.stage in _DONE:
        return False
    book.put(key, None)
    return True


def _forget(book: Book, key: str, shown: tuple[Shown, ...]) -> bool:
    row = book.get(key)
    if row is None or _shown(book, row) not in shown:
        return False
    book.put(key, None)
    return True


def _shown(book: Book, row: Row) -> Shown:
    if row.stage in _DONE or row.session in book.sessions:
        return row.stage
    return "unknown" if row.stage == "started" else "free"


def _summary(book: Book) -> Summary:
    meta = book.meta
    assert meta is not None
    shown = [_shown(book, row) for row in book.unfinished()]
    done, failed = book.ended()
    return Summary(
        meta.created,
        meta.expires,
        meta.cancelled,
        done,
        failed,
        shown.count("claimed"),
        shown.count("started"),
        shown.count("unknown"),
        len(book.sessions),
    )

"""The database of the SQLite store: opened with care, one table, and errors that say what to do."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import quote

from intervalq.errors import StoreError, StoreFull, StoreReadOnly, StoreTimeout, StoreUnavailable
from intervalq.rules import FOREVER, IDLE_KEPT, BadRecord, NewerRecord, State, lapses, settle
from intervalq_stores._fork_gate import GATE
from intervalq_stores._records import QUEUE, bad_name, corrupt, newer, parse, shown
from intervalq_stores._shared_file import MOST_BYTES, SharedFile

try:
    import sqlite3
except ImportError as missing:
    raise StoreError(
        "sqlite://",
        "this Python was built without its sqlite3 module: use another one, or set INTERVALQ_STORE to the "
        "path of a JSON file, redis:// or postgresql://",
    ) from missing

LAYOUT: Final = 1
"""The version of the tables; the records have one of their own."""

BESIDE: Final = ("-wal", "-shm", "-journal")
"""How the names of the files end that SQLite keeps beside a database."""

MOST_TEXT: Final = MOST_BYTES // 2
"""The largest record that is written; what is larger than twice that isn't read."""

_APPLICATION: Final = 0x69766C71  # "ivlq": tells our databases from those of others

_SCHEMA: Final = f"""
PRAGMA journal_mode = MEMORY;
BEGIN;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {LAYOUT};
CREATE TABLE queues (name TEXT PRIMARY KEY NOT NULL, record TEXT NOT NULL, lapses INTEGER) WITHOUT ROWID;
CREATE INDEX lapsing ON queues (lapses) WHERE lapses IS NOT NULL;
COMMIT;
"""

_WRITE: Final = """
INSERT INTO queues (name, record, lapses) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET record = excluded.record, lapses = excluded.lapses
"""

_SWEPT: Final = 16
"""How many records a new one looks at that may have lapsed: more than one, so that they can't pile up."""

_REMEDY: Final = "see what is wrong with that path or disk, or give another path"


class Change(NamedTuple):
    """What becomes of a record: its new text, and when it may be forgotten; None: it's gone, and never."""

    text: str | None
    lapses: int | None

    @classmethod
    def to(cls, text: str, state: State) -> Change:
        """Keep a record. One that can't lapse as it is, but may later, is looked at now and then."""
        if not state.settings.ephemeral:
            return cls(text, None)
        at = lapses(state)
        return cls(text, at if at < FOREVER else state.seen + IDLE_KEPT)


class Database:
    """A connection that is open while it's used; all but the constructor only inside of the gate.

    All errors are StoreErrors that name the URL.
    """

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._url = file.url
        self.journal_mode: str | None = None
        """That of the database when it was last opened; None: there was none."""
        self._connection: sqlite3.Connection | None = None
        self._identity: object = None

    def begin(self, *, write: bool) -> bool:
        """Begin a transaction; False: some other program holds the database. To write only under the lock.

        If there is no database it's empty, and made when something is kept in it.
        """
        if GATE.spoiled:
            raise StoreError(
                self._url,
                "this process was forked while SQLite was at work, and can't use it: start processes by "
                "'spawn' or 'forkserver'",
            )
        try:
            with self._explained():
                return self._begin(write=write)
        except BaseException:
            self.close()
            raise

    def read(self, queue: str) -> object:
        """Give what stands for the record of a queue; None: nothing."""
        with self._explained():
            rows = self._rows("SELECT record FROM queues WHERE name = ?", queue)
        return rows[0][0] if rows else None

    def names(self) -> list[str]:
        """List the queues that have a record, sorted."""
        with self._explained():
            rows = self._rows("SELECT name FROM queues ORDER BY name")
        for (name,) in rows:
            if not isinstance(name, str) or not QUEUE.fullmatch(name):
                raise bad_name(name, self._url)
        return [name for (name,) in rows]

    def check(self) -> None:
        """Look at everything, which takes its time.

        Raises:
            CorruptState: SQLite finds something broken.
        """
        with self._explained():
            found = [str(row[0]) for row in self._rows("PRAGMA integrity_check(3)")]
        if found not in ([], ["ok"]):
            raise corrupt(f"SQLite finds it broken: {shown('; '.join(found))}", self._url)

    def commit(self, changes: dict[str, Change], sweep: int | None) -> None:
        """Keep the changes, safely on the disk, and end the transaction.

        Args:
            changes: of each queue.
            sweep: forget some records that have lapsed by this time.
        """
        with self._explained():
            if changes and self._connection is None:
                self._create()
            for queue, change in changes.items():
                if change.text is not None and len(change.text) > MOST_TEXT:
                    raise StoreFull(
                        self._url,
                        f"the record of queue {queue!r} has more than {MOST_TEXT} bytes, nothing was "
                        "written: let fewer jobs run at the same time",
                    )
                if change.text is None:
                    self._rows("DELETE FROM queues WHERE name = ?", queue)
                else:
                    self._rows(_WRITE, queue, *change)
            if sweep is not None:
                self._sweep(sweep)
            if changes:
                self._file.still_locked()
            self._rows("COMMIT")

    def close(self) -> None:
        """Give up what isn't committed, and close the file."""
        connection, self._connection, self._identity = self._connection, None, None
        if connection is not None:
            GATE.closed(self)
            connection.close()

    # --- the connection -----------------------------------------------------------------------------

    def _begin(self, *, write: bool) -> bool:
        self._file.check()
        if self._connection is not None and self._identity != self._files():
            self.close()  # somebody put another file in its place, or removed it
        try:
            if self._connection is None and not self._open():
                return True
            self._rows("BEGIN IMMEDIATE" if write else "BEGIN")
            self._look()
            if write and self.journal_mode != "wal":
                self._rows("ROLLBACK")
                self._rows("PRAGMA journal_mode = WAL")
                self._rows("BEGIN IMMEDIATE")
                self._look()
                if self.journal_mode != "wal":
                    raise StoreUnavailable(
                        self._url,
                        f"SQLite can't keep a log here, but {self.journal_mode}: {_REMEDY}",
                    )
        except sqlite3.OperationalError as error:
            if _code(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self.close()
                return False
            raise
        self._identity = self._files()
        return True

    def _open(self) -> bool:
        """Connect to the database; False: there is none."""
        path = self._file.path
        try:
            before = os.lstat(path)
        except FileNotFoundError:
            return False
        if not before.st_size:
            raise corrupt("it is empty", self._url)
        # mode=rw: it makes none. Checked by lstat, and never opened but by SQLite: closing a descriptor would
        # take away the locks that SQLite has by another connection of this process.
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=rw",
            uri=True,
            timeout=0,  # its own wait starves waiters; the lock beside it is the queue
            isolation_level=None,
            check_same_thread=False,  # before a fork another thread closes it
        )
        self._connection = connection
        GATE.opened(self)
        # Against a link planted between the check and the opening: SQLite itself follows that of a database.
        self._file.check()
        if not os.path.samestat(before, os.lstat(path)):
            raise StoreUnavailable(self._url, f"it is replaced while it is opened: {_REMEDY}")
        connection.text_factory = bytes.decode
        self._rows("PRAGMA synchronous = FULL")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        self._rows("PRAGMA cell_size_check = ON")  # a broken page is refused, not written on
        return True

    def _look(self) -> None:
        """Refuse a database that isn't ours, or of a newer version."""
        ((application, version, self.journal_mode),) = self._rows(
            "SELECT * FROM pragma_application_id, pragma_user_version, pragma_journal_mode"
        )
        if application != _APPLICATION:
            raise corrupt("it is a database of something else", self._url)
        if version > LAYOUT:
            raise newer(version, LAYOUT, self._url)
        if version < 1:
            raise corrupt("its user_version is not that of a layout", self._url)

    def _files(self) -> object:
        """Which files the names of the database and its log stand for."""
        return [
            (status.st_dev, status.st_ino) if status else None
            for status in (_status(self._file.path), _status(Path(f"{self._file.path}-wal")))
        ]

    def _create(self) -> None:
        # A log left over from one that was removed, which SQLite would play into the new one, goes first.
        self._file.install(_fill)
        for _ in range(200):  # a second, for those who only looked at it as soon as it was there
            if self._begin(write=True):
                return
            time.sleep(0.005)
        raise StoreTimeout(self._url, "another program took the database as it was made: ask again")

    # --- the table ----------------------------------------------------------------------------------

    def _rows(self, statement: str, *values: object) -> list[Any]:
        return [] if self._connection is None else self._connection.execute(statement, values).fetchall()

    def _sweep(self, now: int) -> None:
        found = self._rows(
            "SELECT name, record FROM queues WHERE lapses <= ? ORDER BY lapses LIMIT ?", now, _SWEPT
        )
        for name, record in found:
            try:
                state = State.from_dict(parse(record))
                gone = lapses(settle(state, now)) <= now
            except (BadRecord, NewerRecord, TypeError, ValueError):
                gone = False  # whoever uses that queue is told
            if gone:
                self._rows("DELETE FROM queues WHERE name = ?", name)
            else:  # those that stay must not keep others from being looked at
                self._rows("UPDATE queues SET lapses = ? WHERE name = ?", now + IDLE_KEPT, name)

    # --- errors -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._explain(error)
        except UnicodeDecodeError as error:
            raise corrupt("a text in it is not UTF-8", self._url) from error
        except OSError as error:
            raise StoreUnavailable(
                self._url, f"it can't be looked at: {error.strerror or error}: {_REMEDY}"
            ) from error

    def _explain(self, error: sqlite3.Error) -> NoReturn:
        code = _code(error)
        why = f"SQLite says: {shown(error)}"
        if code & 0xFF in _BROKEN:
            raise corrupt(why, self._url) from error
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            kind: type[StoreError] = StoreTimeout
            remedy = "another program holds the database, nothing was done: ask again"
        elif code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
            kind, remedy = StoreFull, "make room on that disk, or give another path; the old state is whole"
        elif code & 0xFF in _READ_ONLY:
            kind, remedy = StoreReadOnly, "let this user write the file and its folder, or give another path"
        else:
            kind, remedy = StoreUnavailable, _REMEDY
        raise kind(self._url, f"{why}: {remedy}") from error


_READ_ONLY: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_BROKEN: Final = frozenset(
    {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
    | {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT}
)
"""What says that file or tables aren't those that were made here: the statements don't depend on anything."""


def _code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)  # those of the Python module itself have none
    return code if isinstance(code, int) else sqlite3.SQLITE_INTERNAL


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _fill(path: Path, _: int) -> None:
    """Make an empty database without a log, so that it's one file that can be put in place."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(_SCHEMA)

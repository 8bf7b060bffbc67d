"""A SQLite database that processes share: created and opened safely, with errors that name the remedy."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

from intervalq.errors import StoreError, StoreFull, StoreReadOnly, StoreTimeout, StoreUnavailable
from intervalq.rules import BadRecord
from intervalq_stores._files.json_records import corrupt, shown
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores.sqlite._fork_guard import FORK_GUARD

try:
    import sqlite3
except ImportError as missing:
    raise StoreError(
        "sqlite://",
        "this Python was built without its sqlite3 module: use another one, or set INTERVALQ_STORE to the "
        "path of a JSON file, redis:// or postgresql://",
    ) from missing

LIMIT_LENGTH: Final = sqlite3.SQLITE_LIMIT_LENGTH
"""The key of SQLite's limit on the length of a value."""

LAYOUT: Final = 1
"""The version of the tables; the records have their own version."""

BESIDE: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""

APPLICATION: Final = 0x69766C71  # "ivlq": tells our databases from those of others

SCHEMA: Final = f"""
PRAGMA journal_mode = MEMORY;
BEGIN;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {LAYOUT};
CREATE TABLE queues (name TEXT PRIMARY KEY NOT NULL, record TEXT NOT NULL, lapses INTEGER) WITHOUT ROWID;
CREATE INDEX lapsing ON queues (lapses) WHERE lapses IS NOT NULL;
COMMIT;
"""

Inode = tuple[int, int]
"""The identity of a file: the number of its device, and its own."""

_REMEDY: Final = "check that path and its disk, or give another path"


class SQLiteFile:
    """A connection that is open while it is used. Only its constructor may be called outside the fork guard.

    All errors are StoreErrors that name the URL.
    """

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._url = file.url
        self.journal_mode: str | None = None
        """The journal mode of the database when it was last opened; None: there was no database."""
        self._connection: sqlite3.Connection | None = None
        self._opened: Inode | None = None
        self._identity: list[Inode | None] | None = None  # of each of its files

    def begin(self, *, write: bool) -> bool:
        """Begin a transaction; False: another program holds the database. Write only under the lock.

        It is also False while this process has the database open with companion files that were removed. If
        there is no database, it counts as empty, and is created when something is written.
        """
        if FORK_GUARD.spoiled:
            raise StoreError(
                self._url,
                "this process was forked while SQLite was at work, so it can't use it: start processes with "
                "'spawn' or 'forkserver'",
            )
        try:
            with self.explained():
                return self._begin(write=write)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Check the whole database, which takes a while.

        Raises:
            CorruptState: SQLite finds something broken.
        """
        with self.explained():
            found = [str(row[0]) for row in self._rows("PRAGMA integrity_check(3)")]
        if found not in ([], ["ok"]):
            raise corrupt(f"SQLite finds it broken: {shown('; '.join(found))}", self._url)

    def close(self) -> None:
        """Roll back what isn't committed, and close the file."""
        connection, self._connection, self._identity = self._connection, None, None
        if connection is not None:
            FORK_GUARD.closed(self)
            connection.close()

    def still_ours(self) -> None:
        """Make sure, before a commit, that nobody else has the lock or uses other files.

        Raises:
            StoreUnavailable: somebody removed or replaced the lock, the database, or a file beside it.
        """
        self._file.still_locked()
        there = self._files()
        if self._connection is not None and (there != self._identity or None in there):
            raise self._gone()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the current transaction.

        Raises:
            StoreUnavailable: it was closed, for example before a fork.
        """
        if self._connection is None:
            raise StoreUnavailable(
                self._url, "the database was closed by a fork, and nothing was done: try again"
            )
        return self._connection

    def commit(self) -> None:
        """Commit the transaction, safely to the disk."""
        with self.explained():
            self.still_ours()
            self.connection.execute("COMMIT")

    # --- overridden by subclasses ---------------------------------------------------------------------

    def _look(self) -> None:
        """Check that an opened database can be used, and read its journal mode."""
        ((self.journal_mode,),) = self._rows("SELECT * FROM pragma_journal_mode")

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Set the options of a new connection."""

    def _empty(self) -> None:
        """Decide whether an empty file may be used."""
        raise corrupt("it is empty", self._url)

    # --- the connection -----------------------------------------------------------------------------

    def _begin(self, *, write: bool) -> bool:
        self._file.check()
        if self._connection is not None and self._identity != self._files():
            self.close()  # somebody replaced or removed the file
        if self._connection is None and self._others_strayed():
            return False
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
                        f"SQLite can't use a write-ahead log here, only {self.journal_mode}: {_REMEDY}",
                    )
        except sqlite3.OperationalError as error:
            if code_of(error) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self.close()
                return False
            raise
        if self._identity is None:  # once for each connection: later, the files may have been replaced
            self._identity = [self._opened, *self._files()[1:]]
        return True

    def _open(self) -> bool:
        """Connect to the database; False: there is none."""
        path = self._file.path
        try:
            before = os.lstat(path)
        except FileNotFoundError:
            return False
        if not before.st_size:
            self._empty()
        # mode=rw doesn't create a database. It is checked by lstat and opened only by SQLite: closing another
        # descriptor would release the locks that SQLite holds by other connections of this process.
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode=rw",
            uri=True,
            timeout=0,  # SQLite's own wait starves waiters; they queue for the lock beside the database
            isolation_level=None,
            check_same_thread=False,  # another thread closes it before a fork
        )
        self._connection, self._opened = connection, _inode(before)
        FORK_GUARD.opened(self)
        # Against a link planted between the check and the opening, because SQLite follows links of databases.
        self._file.check()
        if not os.path.samestat(before, os.lstat(path)):
            raise StoreUnavailable(self._url, f"it was replaced while it was being opened: {_REMEDY}")
        connection.text_factory = bytes.decode
        self._rows("PRAGMA synchronous = FULL")
        self._prepare(connection)
        self._rows("PRAGMA cell_size_check = ON")  # a broken page raises an error instead of being used
        return True

    def _files(self) -> list[Inode | None]:
        """The identities of the database, its log, and the log's index."""
        return [_found(f"{self._file.path}{end}") for end in ("", "-wal", "-shm")]

    def _others_strayed(self) -> bool:
        """Whether another connection of this process uses a log or index of the database that was removed.

        SQLite has one index per process: with that index, a new connection would not see what others write.
        """
        files = self._files()
        return any(
            isinstance(other, SQLiteFile)
            and (theirs := other._identity) is not None  # noqa: SLF001 - its own class
            and theirs[0] == files[0]
            and theirs != files
            for other in FORK_GUARD.those_open()
        )

    def _gone(self) -> StoreUnavailable:
        return StoreUnavailable(
            self._url,
            "somebody removed or replaced its files while this process used them, so nothing was written: "
            "try again; don't touch files in use, and restore backups only while no process uses them",
        )

    def _create(self) -> None:
        # First remove a log left over from a removed database, which SQLite would play into the new one.
        self._file.install(_fill)
        for _ in range(200):  # up to a second, because readers may hold the new database
            if self._begin(write=True):
                if self._connection is None:
                    raise self._gone()
                return
            time.sleep(0.005)
        raise StoreTimeout(self._url, "another program held the database when it was created: try again")

    # --- statements ----------------------------------------------------------------------------------

    def _rows(self, statement: str, *values: object) -> list[Any]:
        return [] if self._connection is None else self._connection.execute(statement, values).fetchall()

    # --- errors -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self.explain(error)
        except UnicodeDecodeError as error:
            raise corrupt("a text in it is not UTF-8", self._url) from error
        except BadRecord as error:
            raise corrupt(shown(error), self._url) from error
        except OSError as error:
            raise StoreUnavailable(
                self._url, f"it can't be checked: {error.strerror or error}: {_REMEDY}"
            ) from error

    def explain(self, error: sqlite3.Error) -> NoReturn:
        code = code_of(error)
        why = f"SQLite says: {shown(error)}"
        if code & 0xFF in _BROKEN:
            if code == sqlite3.SQLITE_NOTADB:
                why += (
                    "; if another program wrote it, give another path; if queues keep JSON in it, give tasks "
                    "and ledgers a file of their own"
                )
            raise corrupt(why, self._url) from error
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            kind: type[StoreError] = StoreTimeout
            remedy = "another program holds the database, and nothing was done: try again"
        elif code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
            kind, remedy = StoreFull, "make room on that disk, or give another path; the old state is intact"
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
"""Errors which show that intervalq didn't create the file or tables, because its statements are fixed."""


def code_of(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)  # errors of the Python module itself have no code
    return code if isinstance(code, int) else sqlite3.SQLITE_INTERNAL


def _found(path: str) -> Inode | None:
    try:
        return _inode(os.lstat(path))
    except FileNotFoundError:
        return None


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _fill(path: Path, _: int) -> None:
    """Create an empty database without a log, so that a single file can be put in place."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(SCHEMA)

"""`Ledger`: the handle with which users inspect and change one ledger."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from anyio import to_thread

from intervalq._spec import codec, parse
from intervalq._spec.codec import Codec, checked_codec
from intervalq.errors import CorruptState, InvalidOption, LedgerNotFound, short
from intervalq.ledger._checks import SHOWN, checked_keys, checked_name, checked_shown
from intervalq.ledger._large import LargeAnswers, beside
from intervalq.ledger.rules import (
    MAX_ROWS,
    Answer,
    Cancel,
    Command,
    Count,
    Drop,
    Expire,
    Forget,
    Look,
    Seen,
    Shown,
)
from intervalq.ledger.store import LedgerStore, open_ledger_store

_NOT_HELD: Final[tuple[Shown, ...]] = ("unknown", "free", "done", "failed")
_FIRST_PAGE: Final = 100
_MAX_PAGE: Final = 4 << 20
"""The size of a page, in characters, above which the next page has fewer rows."""

_MAX_EMPTY: Final = 10_000
"""The maximum number of empty pages in a row: a sparse hash of Redis has some hundreds."""


class LedgerInfo(NamedTuple):
    """A ledger in numbers. Times are seconds, on the store's clock."""

    name: str
    created: float
    """When it was created, in seconds since 1970."""
    expires: float | None
    """When it is removed; None: never."""
    cancelled: bool
    """Whether the run is cancelled, so that nobody may claim or start rows."""
    done: int
    """Rows that ended with a result."""
    failed: int
    """Rows that ended with an error."""
    claimed: int
    """Rows that a live process holds, and has not called."""
    started: int
    """Rows that a live process may be calling."""
    unknown: int
    """Rows that a process that died may have called."""
    sessions: int
    """The number of live processes."""


class _Row(NamedTuple):
    key: str
    state: Shown
    """`claimed` or `started` by a live process; `unknown`: started by a process that died; `free`: only
    claimed by one; `done` or `failed`."""
    attempt: int
    """How many times it was claimed since it was last free: 2 or more if processes died while holding it."""
    json: str
    """The stored result or error; empty before the end."""
    at: float
    """When it reached its stage, in seconds since 1970; the death of its process doesn't change it."""


class LedgerRow(_Row):
    """A row of a ledger."""

    ledger: str = ""
    """The name of its ledger."""
    codec: Codec | None = None
    """Internal: the codec of its value."""

    @property
    def value(self) -> Any:  # noqa: ANN401 - any JSON
        """Its result or error, parsed from JSON after the handle's codec; None before the end.

        Raises:
            UnreadableValue: the handle has no codec, or another one, or the value was damaged.
        """
        if not self.json:
            return None
        return codec.read(self.codec, self.json, f"row {short(self.key)} of ledger {self.ledger!r}")


class Ledger:
    """The record of a run: which rows were called, and how each call ended.

    A handle doesn't connect until it is used, and belongs to one event loop. Inspecting or changing a ledger
    never creates one. Use it as `async with Ledger(...) as ledger:`, or call `aclose`.

    Args:
        name: the name of the run.
        store: a URL, a path, or a store object. None: the environment variable `INTERVALQ_STORE`, else the
            SQLite database in the user's state folder, as for queues.
        codec: the codec of the run's values, as given to `intervalq.spark.paced`. None: they have none.
        large_answers: the folder of the run's large answers, as given to `intervalq.spark.paced`, from which
            `forget` and `drop` remove those of rows that they remove. None: beside a ledger in a file.

    Raises:
        InvalidName: it can't be the name of a run.
        UnknownStore, MissingExtra, InvalidOption, StoreError: as for `intervalq.store.open_store`.
    """

    def __init__(
        self,
        name: str,
        store: str | os.PathLike[str] | LedgerStore | None = None,
        *,
        codec: Codec | None = None,
        large_answers: str | None = None,
    ) -> None:
        self.name = checked_name(name)
        self._codec = checked_codec(codec)
        self._store = _opened(store)
        folder = large_answers or beside(self._store.url)
        self._large = None if folder is None else LargeAnswers(folder, self.name)

    def __repr__(self) -> str:
        return f"Ledger({self.name!r}, {self._store.url!r})"

    async def info(self) -> LedgerInfo:
        """The ledger in numbers. This is fast, however many rows have ended.

        Raises:
            LedgerNotFound: there is no such ledger.
            StoreError: as in every method of this class.
        """
        summary = (await self._apply(Count())).summary
        assert summary is not None
        until = None if summary.expires is None else summary.expires / 1e6
        return LedgerInfo(self.name, summary.created / 1e6, until, *summary[2:])

    async def rows(self, shown: Iterable[Shown] | None = None) -> AsyncGenerator[LedgerRow, None]:
        """The rows, in no particular order. A row that changes during the iteration may appear twice.

        Args:
            shown: only rows that are in one of these states; None: all rows.

        Raises:
            InvalidOption: there is no such state.
            LedgerNotFound: there is no such ledger, or it was dropped in the meantime.
        """
        wanted = SHOWN if shown is None else checked_shown(shown)
        async for page in self._pages():
            for key, state, attempt, value, at in page:
                if state in wanted:
                    row = LedgerRow(key, state, attempt, value, at / 1e6)
                    row.ledger, row.codec = self.name, self._codec
                    yield row

    async def cancel(self) -> None:
        """Forbid claiming and starting rows. Calls in flight end, and their results are recorded.

        Raises:
            LedgerNotFound: there is no such ledger.
        """
        await self._apply(Cancel())

    async def uncancel(self) -> None:
        """Allow claiming and starting rows again.

        Raises:
            LedgerNotFound: there is no such ledger.
        """
        await self._apply(Cancel(on=False))

    async def expire(self, after: float | timedelta | str | None) -> None:
        """Have the ledger removed after some time, whatever happens to it until then.

        Args:
            after: seconds, a timedelta, or text such as `12h` or `30d`; up to a year. None: keep it.

        Raises:
            InvalidInterval: `after` is not such a time.
            LedgerNotFound: there is no such ledger.
        """
        span = None if after is None else parse.duration(after, least=1, what="time to expire after")
        now = (await self._apply(Count())).now
        await self._apply(Expire(None if span is None else now + span))

    async def forget(self, keys: Iterable[str] | None = None, shown: Iterable[Shown] | None = None) -> int:
        """Remove rows, so that they are called again; returns how many were removed.

        Args:
            keys: the keys of the rows; None: all rows in the states of `shown`, which must then be given.
            shown: only rows that are in one of these states. None: all states but `claimed` and `started`,
                because a live process may be calling such rows.

        Raises:
            InvalidOption: neither is given, or one of them is invalid.
            LedgerNotFound: there is no such ledger.
        """
        if keys is None and shown is None:
            raise InvalidOption("give keys= or shown= to select rows; drop() removes the whole ledger")
        kinds = _NOT_HELD if shown is None else checked_shown(shown)
        if keys is not None:
            return await self._forget(checked_keys(keys), kinds)
        removed = 0
        async for page in self._pages():
            removed += await self._forget(tuple(row.key for row in page if row.shown in kinds), kinds)
        return removed

    async def drop(self) -> bool:
        """Remove the ledger with all of its rows; returns whether it existed."""
        # Listed before the rows are gone: from then on a new run of this name may write others.
        files = [] if self._large is None else await to_thread.run_sync(self._large.names)
        found = (await self._store.apply(self.name, Drop())).found
        if self._large is not None:
            await to_thread.run_sync(self._large.drop, files)
        return found

    async def aclose(self) -> None:
        """Close all connections; the handle connects again when it is used again."""
        await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def _forget(self, keys: tuple[str, ...], kinds: tuple[Shown, ...]) -> int:
        removed = 0
        # Listed before the rows are gone: then those may be called again, and have other files.
        files = [] if self._large is None else await to_thread.run_sync(self._large.names)
        for first in range(0, max(1, len(keys)), MAX_ROWS):
            some = keys[first : first + MAX_ROWS]
            count = (await self._apply(Forget(some, kinds))).removed
            removed += count
            if self._large is not None and files and count == len(some):  # else they stay until `drop`
                await to_thread.run_sync(self._large.remove, files, some)
        return removed

    async def _pages(self) -> AsyncGenerator[tuple[Seen, ...], None]:
        """All rows, in pages whose size depends on the lengths of their values."""
        look, empty = Look(limit=_FIRST_PAGE), 0
        while True:
            answer = await self._apply(look)
            yield answer.rows
            if not answer.cursor:
                return
            empty = 0 if answer.rows else empty + 1
            if answer.cursor == look.cursor or empty > _MAX_EMPTY:
                raise CorruptState(self._store.url, "the pages of a ledger have no end")
            size = sum(len(row.value) for row in answer.rows)
            limit = (
                look.limit // 2
                if size > _MAX_PAGE
                else look.limit * 2
                if size < _MAX_PAGE // 4
                else look.limit
            )
            look = Look(answer.cursor, max(1, min(limit, MAX_ROWS)))

    async def _apply(self, command: Command) -> Answer:
        answer = await self._store.apply(self.name, command)
        if not answer.found:
            raise LedgerNotFound(self.name)
        return answer


async def ledgers(store: str | os.PathLike[str] | LedgerStore | None = None) -> list[str]:
    """The names of all ledgers of a store, sorted.

    Args:
        store: as for `Ledger`.

    Raises:
        UnknownStore, MissingExtra, InvalidOption, StoreError: as for `intervalq.store.open_store`.
    """
    opened = _opened(store)
    try:
        return await opened.names()
    finally:
        if opened is not store:
            await opened.aclose()


def _opened(store: str | os.PathLike[str] | LedgerStore | None) -> LedgerStore:
    if store is None or isinstance(store, str):
        return open_ledger_store(store)
    if isinstance(store, os.PathLike):
        return open_ledger_store(os.fspath(store))
    return store

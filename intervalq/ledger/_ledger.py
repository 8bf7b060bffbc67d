"""`Ledger`: the handle of one ledger, for people: what is in it, and what is done to it by hand."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from intervalq._spec import codec, parse
from intervalq._spec.codec import Codec, checked_codec
from intervalq.errors import InvalidOption, LedgerNotFound, short
from intervalq.ledger._checks import SHOWN, checked_keys, checked_name, checked_shown
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
"""Characters in a page of rows above which the next one has fewer of them."""


class LedgerInfo(NamedTuple):
    """A ledger in numbers. Times are seconds, on the store's clock."""

    name: str
    created: float
    """When it was made, in seconds since 1970."""
    expires: float | None
    """When all of it is forgotten; None: never."""
    cancelled: bool
    """Whether nobody may claim or start rows."""
    done: int
    """Rows that ended with a result."""
    failed: int
    """Rows that ended with an error."""
    claimed: int
    """Rows that a live process holds, and has not called."""
    started: int
    """Rows that a live process may be calling."""
    unknown: int
    """Rows that a process which is gone may have called."""
    sessions: int
    """Processes that are alive."""


class _Row(NamedTuple):
    key: str
    state: Shown
    """`claimed` or `started` by a live process; `unknown`: started, or `free`: only claimed, by one that is
    gone; `done` or `failed`."""
    attempt: int
    """How often it was claimed since it was last free: 2 or more when processes died holding it."""
    json: str
    """What is kept of its end, as it is in the store; empty before that."""
    at: float
    """When it came to this state (what it was before its process was gone), in seconds since 1970."""


class LedgerRow(_Row):
    """A row of a ledger."""

    ledger: str = ""
    """The name of its ledger."""
    codec: Codec | None = None
    """Internal: what its value is read with."""

    @property
    def value(self) -> Any:  # noqa: ANN401 - any JSON
        """What is kept of its end, of JSON, through the handle's codec; None before that.

        Raises:
            UnreadableValue: the handle has no codec, or another one, or it was damaged.
        """
        if not self.json:
            return None
        return codec.read(self.codec, self.json, f"row {short(self.key)} of ledger {self.ledger!r}")


class Ledger:
    """The memory of a run: which rows were called, and how that ended.

    A handle connects to nothing until it is used, and lives in one event loop. Looking at a ledger, or
    changing it by hand, makes none. Use it as `async with Ledger(...) as ledger:`, or call `aclose`.

    Args:
        name: that of the run.
        store: a URL, a path, or a store object. None: the environment's `INTERVALQ_STORE`, else the SQLite
            database in the user's state folder: where queues are by default, too.
        codec: what the run's values were encoded with, as `intervalq.spark.paced` was told. None: nothing.

    Raises:
        InvalidName: the name can't be that of a run.
        UnknownStore, MissingExtra, InvalidOption, StoreError: as for `intervalq.store.open_store`.
    """

    def __init__(
        self,
        name: str,
        store: str | os.PathLike[str] | LedgerStore | None = None,
        *,
        codec: Codec | None = None,
    ) -> None:
        self.name = checked_name(name)
        self._codec = checked_codec(codec)
        self._store = _opened(store)

    def __repr__(self) -> str:
        return f"Ledger({self.name!r}, {self._store.url!r})"

    async def info(self) -> LedgerInfo:
        """The ledger in numbers; quick, however many rows have ended.

        Raises:
            LedgerNotFound: there is none.
            StoreError: as every method here.
        """
        summary = (await self._apply(Count())).summary
        assert summary is not None
        until = None if summary.expires is None else summary.expires / 1e6
        return LedgerInfo(self.name, summary.created / 1e6, until, *summary[2:])

    async def rows(self, shown: Iterable[Shown] | None = None) -> AsyncGenerator[LedgerRow, None]:
        """The rows, in no order, a page at a time. One that changes meanwhile comes once, or seldom twice.

        Args:
            shown: only rows that are in one of these states; None: all of them.

        Raises:
            InvalidOption: there is no such state.
            LedgerNotFound: there is no ledger, or it was dropped meanwhile.
        """
        wanted = SHOWN if shown is None else checked_shown(shown)
        async for page in self._pages():
            for key, state, attempt, value, at in page:
                if state in wanted:
                    row = LedgerRow(key, state, attempt, value, at / 1e6)
                    row.ledger, row.codec = self.name, self._codec
                    yield row

    async def cancel(self) -> None:
        """Let nobody claim or start rows. Calls that are under way end, and what they give is kept.

        Raises:
            LedgerNotFound: there is none.
        """
        await self._apply(Cancel())

    async def uncancel(self) -> None:
        """Let rows be claimed and started again.

        Raises:
            LedgerNotFound: there is none.
        """
        await self._apply(Cancel(on=False))

    async def expire(self, after: float | timedelta | str | None) -> None:
        """Have all of it forgotten some time from now, whatever becomes of it until then.

        Args:
            after: seconds, a timedelta, or text such as `12h` or `30d`; up to a year. None: keep it.

        Raises:
            InvalidInterval: it isn't such a time.
            LedgerNotFound: there is none.
        """
        span = None if after is None else parse.duration(after, least=1, what="time to expire after")
        now = (await self._apply(Count())).now
        await self._apply(Expire(None if span is None else now + span))

    async def forget(self, keys: Iterable[str] | None = None, shown: Iterable[Shown] | None = None) -> int:
        """Remove rows, so that they are called anew; how many were removed.

        Args:
            keys: of these rows; None: of all rows that are shown so, which `shown` then has to say.
            shown: only rows that are in one of these states. None: all but `claimed` and `started`, because a
                live process may be calling those.

        Raises:
            InvalidOption: neither is given, or one of them isn't right.
            LedgerNotFound: there is no ledger.
        """
        if keys is None and shown is None:
            raise InvalidOption("say which rows: keys=, or shown=; drop() removes the ledger")
        kinds = _NOT_HELD if shown is None else checked_shown(shown)
        if keys is not None:
            return await self._forget(checked_keys(keys), kinds)
        removed = 0
        async for page in self._pages():
            removed += await self._forget(tuple(row.key for row in page if row.shown in kinds), kinds)
        return removed

    async def drop(self) -> bool:
        """Remove the ledger with all that is in it; whether there was one."""
        return (await self._store.apply(self.name, Drop())).found

    async def aclose(self) -> None:
        """Let go of connections; the handle opens again when it is used again."""
        await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def _forget(self, keys: tuple[str, ...], kinds: tuple[Shown, ...]) -> int:
        removed = 0
        for first in range(0, max(1, len(keys)), MAX_ROWS):
            removed += (await self._apply(Forget(keys[first : first + MAX_ROWS], kinds))).removed
        return removed

    async def _pages(self) -> AsyncGenerator[tuple[Seen, ...], None]:
        """All rows. How many come at a time depends on how long their values are."""
        look = Look(limit=_FIRST_PAGE)
        while True:
            answer = await self._apply(look)
            yield answer.rows
            if not answer.cursor:
                return
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
    """The names of the ledgers that there are, sorted.

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

"""Large answers: they are made one at a time, and the size of those that wait for clients is bounded.

gRPC keeps an answer until its client has taken it, and offers no way to take it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import anyio
from anyio import to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from intervalq.service._refusal import Code, Refusal
from intervalq.tasks.rules import OutcomeRow, Outcomes, Row, Select
from intervalq.tasks.store import TaskStore

T = TypeVar("T")
A = TypeVarTuple("A")

SENDER: Final[ContextVar[str]] = ContextVar("intervalq_sender", default="")
"""Who sends the request that is answered now: an account, or a connection."""

MAX_LIST: Final = 64 << 20
"""The maximum size of a list, in bytes: its values, results, checkpoints and errors."""
LARGE: Final = 32_768
"""Larger messages, in bytes, are read and written in threads: others are answered meanwhile."""
COUNTED: Final = 16_384
"""Smaller answers, in bytes, aren't counted."""
_PIECE: Final = 65_536
_MAX_UNTAKEN: Final = 4 * MAX_LIST
"""What may wait for clients in all, in bytes: beyond that, no more lists are made."""
_OF_ONE: Final = 2 * MAX_LIST
"""What may wait for one client."""
_FEW: Final = 10
"""The maximum number of ids that may be looked up while a list is made."""
PAGE: Final = 100
"""The maximum number of tasks with values that one step of a list reads."""


class Answers:
    """The large answers of a service that clients have not taken yet."""

    def __init__(self) -> None:
        self._turn = anyio.Lock()
        self._untaken: Counter[str] = Counter()

    @asynccontextmanager
    async def making(self, ids: Sequence[str] = ()) -> AsyncIterator[None]:
        """Make a list that may be large: others wait meanwhile. One of a few ids needs no turn.

        Raises:
            Refusal: too much waits to be taken.
        """
        async with nullcontext() if 0 < len(ids) <= _FEW else self._turn:
            if self._untaken[SENDER.get()] >= _OF_ONE or self._untaken.total() >= _MAX_UNTAKEN:
                raise Refusal(
                    Code.RESOURCE_EXHAUSTED, "large answers are waiting to be taken: take them, and ask again"
                )
            yield

    def waits(self, size: int) -> Callable[[], None] | None:
        """Note an answer; call what this returns once it is taken, or nobody will. None: it is too small."""
        if size < COUNTED:
            return None
        sender = SENDER.get()
        self._untaken[sender] += size
        return partial(self._taken, sender, size)

    def _taken(self, sender: str, size: int) -> None:
        self._untaken[sender] -= size
        if not self._untaken[sender]:
            del self._untaken[sender]

    # --- lists ---------------------------------------------------------------------------------------

    async def pages(
        self, store: TaskStore, select: Select, now: int | None = None
    ) -> AsyncIterator[list[Row]]:
        """The tasks of a list, a page at a time: no store reads all of their values at once.

        Raises:
            Refusal: they are too large together even without their values.
        """
        most = len(select.ids) or select.limit
        if most is not None and most <= PAGE:
            yield [*await store.apply(select, now)]
            return
        if select.ids:
            ids, left = [*dict.fromkeys(select.ids)], select.limit
            for begin in range(0, len(ids), PAGE):
                page = replace(select, ids=tuple(ids[begin : begin + PAGE]), limit=left)
                rows = [*await store.apply(page, now)]
                left = None if left is None else left - len(rows)
                yield rows
            return
        if not select.values:
            yield await _read(store, select, now)
            return
        found = await store.apply(replace(select, limit=PAGE + 1), now)
        if len(found) <= PAGE:
            yield [*found]
            return
        ids = [row.id for row in await _read(store, replace(select, values=False), now)]
        for begin in range(0, len(ids), PAGE):
            # A task that was moved or given back meanwhile isn't in the list any more.
            yield [
                row
                for row in await store.apply(Select(ids=tuple(ids[begin : begin + PAGE])), now)
                if select.queue in (None, row.queue) and select.session in (None, row.session)
            ]

    async def list_of(self, store: TaskStore, select: Select, now: int | None = None) -> list[Row]:
        """The tasks of a list.

        Raises:
            Refusal: their values are too large together.
        """
        rows: list[Row] = []
        size = 0
        async for page in self.pages(store, select, now):
            rows += page
            size = _fitting(size + size_of(page))
        return rows

    async def outcomes_of(
        self, store: TaskStore, command: Outcomes, now: int | None = None
    ) -> list[OutcomeRow]:
        """Outcomes, of which no step reads many more than an answer may have.

        Raises:
            Refusal: they are too large together.
        """
        ids = [*dict.fromkeys(command.ids)]
        if not ids:
            return await _read(store, command, now)
        rows: list[OutcomeRow] = []
        size = 0
        for begin in range(0, len(ids), PAGE):
            page = await store.apply(replace(command, ids=tuple(ids[begin : begin + PAGE])), now)
            rows += page
            size = _fitting(size + size_of(page))
        # A page is in the order of the ends, also if the clock was set back; pages have only their times.
        return rows if len(ids) <= PAGE else sorted(rows, key=lambda row: row.ended)


async def _read(
    store: TaskStore,
    command: Any,  # noqa: ANN401 - its rows are those of the command
    now: int | None,
) -> list[Any]:
    """A list that has no pages: read with a growing limit, until that suffices.

    Raises:
        Refusal: it is too large.
    """
    limit = PAGE + 1
    while True:
        last = command.limit is not None and command.limit <= limit
        rows = await store.apply(command if last else replace(command, limit=limit), now)
        size = _fitting(size_of(rows))
        if last or len(rows) < limit:
            return [*rows]
        limit *= 4 if 4 * size <= MAX_LIST else 2


def size_of(rows: Iterable[Row | OutcomeRow]) -> int:
    """What the texts of tasks or outcomes take that may be long, in bytes."""
    return sum([len(row.json) + len(row.errors) + len(_of_kind(row)) for row in rows])


def _of_kind(row: Row | OutcomeRow) -> str:
    return row.progress if isinstance(row, Row) else row.result


def _fitting(size: int) -> int:
    """The size of a list.

    Raises:
        Refusal: it is too large.
    """
    if size > MAX_LIST:
        raise Refusal(
            Code.RESOURCE_EXHAUSTED,
            f"a list has at most {MAX_LIST >> 20} MiB of values: give a lower limit",
        )
    return size


async def away(is_large: bool, do: Callable[[Unpack[A]], T], *arguments: *A) -> T:
    """What a function gives; for a large message it works in a thread."""
    return await to_thread.run_sync(do, *arguments) if is_large else do(*arguments)


def counted(answers: Answers, answer: Response) -> Response:
    """An answer over HTTP, which counts if it is large."""
    taken = answers.waits(len(answer.body))
    return answer if taken is None else Pieces(answer, taken)


class Pieces(Response):
    """A large answer over HTTP, which counts until the client has taken nearly all of it."""

    def __init__(self, answer: Response, taken: Callable[[], None]) -> None:
        self._answer, self._taken = answer, taken
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        del scope, receive
        answer = self._answer
        try:
            await send(
                {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
            )
            body = bytes(answer.body)
            for begin in range(0, len(body), _PIECE):
                piece = body[begin : begin + _PIECE]
                more = begin + _PIECE < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._taken()

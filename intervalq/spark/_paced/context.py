"""The context that a function gets with each row, and the client that a Python worker keeps between calls."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

import pyarrow as pa
from anyio import from_thread

from intervalq.errors import InvalidOption, MissingExtra

if TYPE_CHECKING:
    from intervalq import IntervalQueue

_SPACE: Final = UUID("c29eab6c-1f43-4f53-8a63-2f1ad54a9c2e")
"""The UUID namespace of this library's idempotency keys; an arbitrary number."""

Setup = Callable[[], Any]


class CallContext:
    """One call of one row.

    Attributes:
        key: the idempotency key: a UUID (version 5, RFC 9562) that is the same for every call of this row in
            this run, and unique to it. A service that knows such keys does the work only once.
        row_key: the row's key, as text; empty without a key.
        ticket: the place in the queue; 0 without a queue.
        due: the slot, in seconds since 1970 on the store's clock; 0 without a queue.
        attempt: 1 for the row's first call in this task, then 2 and so on (`retries`).
    """

    __slots__ = ("_client", "_queue", "_run", "attempt", "due", "row_key", "ticket")

    def __init__(self, run: str, row_key: str, queue: IntervalQueue | None, client: Client) -> None:
        self.row_key = row_key
        self.ticket = 0
        self.due = 0.0
        self.attempt = 0
        self._run = run
        self._queue = queue
        self._client = client

    @property
    def key(self) -> str:
        """The idempotency key."""
        if not self.row_key:
            raise InvalidOption("this stage has no row keys: give paced() a key and a run")
        return str(uuid5(_SPACE, f"{self._run}\0{self.row_key}"))

    @property
    def http(self) -> Any:  # noqa: ANN401 - whatever `setup` made
        """The client that `setup` created, or else an `aiohttp.ClientSession`. One for each Python worker."""
        return self._client.made

    def cool_down(self, seconds: float) -> Awaitable[None]:
        """Stop every executor's starts for a while: see `IntervalQueue.cool_down`. Await the result."""
        if self._queue is None:
            raise InvalidOption("there is nothing to cool down: this stage has no queue")
        return self._queue.cool_down(seconds)


class BlockingContext(CallContext):
    """The context of a plain function, which runs in a thread."""

    __slots__ = ()

    def cool_down(self, seconds: float) -> Any:  # noqa: ANN401 - None; the other kind's is awaited
        """Stop every executor's starts for a while: see `IntervalQueue.cool_down`."""
        from_thread.run(_awaited, super().cool_down(seconds))


async def _awaited(what: Awaitable[None]) -> None:
    await what


class Client:
    """The client that `setup` created, kept in this process for the next task."""

    def __init__(self, setup: Setup | None, identity: str) -> None:
        self._setup = setup
        self.identity = identity
        self._stack = AsyncExitStack()
        self._made: Any = None
        self.process = os.getpid()

    @property
    def made(self) -> Any:  # noqa: ANN401 - whatever `setup` made
        """The client; the default one is created at its first use."""
        if self._made is None and self._setup is None:
            self._made = _default()
            self._stack.push_async_callback(self._made.close)
        return self._made

    async def open(self) -> None:
        """Call `setup`; if it returns a context manager, enter it."""
        if self._setup is None:
            return
        made = self._setup()
        if inspect.isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            made = await self._stack.enter_async_context(made)
        elif hasattr(made, "__enter__"):
            made = self._stack.enter_context(made)
        self._made = made

    async def close(self) -> None:
        """Exit the context manager, if one was entered."""
        await self._stack.aclose()


def _default() -> Any:  # noqa: ANN401 - of an extra
    try:
        import aiohttp  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise MissingExtra("ctx.http without a setup", "spark") from missing
    return aiohttp.ClientSession()


_kept: Client | None = None


def prepare(function: Callable[..., Any], setup: Setup | None) -> None:
    """Import what calls and results need, before this task holds a ticket.

    Later, an import would delay slots by seconds, also those of other tasks, whose slots come after this
    task's.
    """
    pa.array([None])  # Arrow imports pandas when it makes its first array
    code = getattr(function, "__code__", None)
    if setup is None and code is not None and "http" in code.co_names:
        with suppress(ImportError):  # reported when it is used
            import aiohttp  # noqa: F401, PLC0415 - an extra


async def client(setup: Setup | None, identity: str) -> Client:
    """The client of this process: the existing one if its `setup` is the same, else a new one."""
    global _kept  # noqa: PLW0603 - there is one for each process
    if _kept is not None and (_kept.identity, _kept.process) != (identity, os.getpid()):
        old, _kept = _kept, None
        if old.process == os.getpid():
            await old.close()
    if _kept is None:
        new = Client(setup, identity)
        await new.open()
        _kept = new
    return _kept

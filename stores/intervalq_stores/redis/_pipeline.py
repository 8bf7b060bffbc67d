"""One connection to one Redis: commands are sent at once, and answers are matched to them in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions as driver
from redis.asyncio.connection import AbstractConnection

from intervalq.store import stopwatch
from intervalq_stores.redis._ports import Trip
from intervalq_stores.redis._scripts import Script
from intervalq_stores.redis._tls import bound, secured

WITHIN: Final = 5.0
"""The timeout, in seconds, for connecting, and from sending a command to its answer."""

_ASKING: Final = (b"ASKING",)


@dataclass(eq=False, slots=True)
class _Call:
    """A command, until its answer is parsed. A caller that was cancelled has cancelled `outcome`."""

    command: tuple[bytes, ...]
    asking: bool
    outcome: asyncio.Future[tuple[Any, Trip]]
    sent: int = 0
    deadline: float = 0.0

    def end(self, answer: object, received: int) -> None:
        if self.outcome.done():
            return
        if isinstance(answer, Exception):
            self.outcome.set_exception(answer)
        else:
            self.outcome.set_result((answer, (self.sent, received)))


class PipelinedConnection:
    """A connection that is opened when it is needed, for all callers of one event loop.

    Nothing is sent twice. Background tasks exist only while commands are unsent or unanswered.
    """

    def __init__(self, make: Callable[[], AbstractConnection]) -> None:
        self._make = make
        self._pipeline: _Pipeline | None = None
        self._unsent: list[_Call] = []
        self._sending: asyncio.Task[None] | None = None
        self._closed = False
        self._texts: set[str] = set()  # digests of scripts whose text is being sent

    async def run(self, script: Script, *arguments: str | bytes, asking: bool = False) -> tuple[Any, Trip]:
        """Run a script by its digest, or by its text if the server doesn't know it yet.

        Of many callers only one sends the text: the server has it before it reads the later commands.
        """
        with contextlib.suppress(driver.NoScriptError):  # then it did not run
            return await self.call("EVALSHA", script.digest, *arguments, asking=asking)
        if script.digest in self._texts:
            with contextlib.suppress(driver.NoScriptError):
                return await self.call("EVALSHA", script.digest, *arguments, asking=asking)
        self._texts.add(script.digest)
        try:
            return await self.call("EVAL", script.text, *arguments, asking=asking)
        finally:
            self._texts.discard(script.digest)

    async def call(self, *command: str | bytes, asking: bool = False) -> tuple[Any, Trip]:
        """Send a command and wait for its answer; `asking`: for a slot that is migrating to this node."""
        parts = tuple(part.encode() if isinstance(part, str) else part for part in command)
        loop = asyncio.get_running_loop()
        call = _Call(parts, asking, loop.create_future())
        self._unsent.append(call)
        if self._sending is None:  # it starts after this turn, and sends all of its commands
            self._sending = loop.create_task(self._send())
        return await call.outcome

    async def close(self) -> None:
        """Close the connection; if somebody waits for an answer, when the last one has come."""
        self._closed = True
        if self._sending is not None and not _awaited(self._unsent):
            self._unsent.clear()
            self._sending.cancel()
        if self._pipeline is not None:
            await self._pipeline.close()

    async def _send(self) -> None:
        try:
            while self._unsent:
                pipeline = await self._opened()
                calls, self._unsent = self._unsent, []
                await pipeline.send([call for call in calls if not call.outcome.done()])
        except BaseException as error:
            calls, self._unsent = self._unsent, []
            _fail(calls, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._sending = None
            if self._closed and self._pipeline is not None:
                await self._pipeline.close()

    async def _opened(self) -> _Pipeline:
        if self._pipeline is not None and self._pipeline.has_ended:
            await self._pipeline.end(driver.ConnectionError("the server closed the connection"))
            self._pipeline = None
        if self._pipeline is None:
            connection = self._make()
            await connect(connection)
            self._pipeline = _Pipeline(connection)
        return self._pipeline


class _Pipeline:
    """An open connection, and its unanswered commands."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._unanswered: deque[_Call] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def has_ended(self) -> bool:
        """Whether no answer can come any more, so that the next command needs another connection."""
        reader: asyncio.StreamReader | None = getattr(self._connection, "_reader", None)
        if reader is None:
            return not self._connection.is_connected
        return reader.at_eof() or reader.exception() is not None

    async def send(self, calls: list[_Call]) -> None:
        """Send commands in one piece. If that fails, all unanswered commands get the error."""
        loop = asyncio.get_running_loop()
        commands = (part for call in calls for part in ([_ASKING] if call.asking else []) + [call.command])
        packed = self._connection.pack_commands(commands)
        self._unanswered.extend(calls)
        if self._reading is None and calls:
            self._reading = loop.create_task(self._read())
        deadline, sent = loop.time() + WITHIN, stopwatch()
        for call in calls:
            call.deadline, call.sent = deadline, sent
        try:
            async with asyncio.timeout_at(deadline):
                await self._connection.send_packed_command(packed, check_health=False)
        except BaseException as error:
            await self.end(error)
            if not isinstance(error, Exception):
                raise

    async def close(self) -> None:
        """Close the connection; if somebody waits for an answer, when the last one has come."""
        self._closing = True
        if not _awaited(self._unanswered):
            await self.end(driver.ConnectionError("the store was closed"))

    async def end(self, error: BaseException) -> None:
        """Close the connection at once; waiting callers get the error."""
        reading, self._reading = self._reading, None
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
        calls = list(self._unanswered)
        self._unanswered.clear()
        _fail(calls, error)
        await drop(self._connection)

    async def _read(self) -> None:
        """Read answers until none is outstanding. A late answer counts as a lost connection."""
        try:
            async with asyncio.timeout(None) as late:
                while self._unanswered:
                    late.reschedule(self._unanswered[0].deadline)
                    answer = await self._answer(self._unanswered[0].asking)
                    self._unanswered.popleft().end(answer, stopwatch())
            self._reading = None
            if self._closing:
                await drop(self._connection)
        except BaseException as error:
            await self.end(error)
            if not isinstance(error, Exception):
                raise

    async def _answer(self, asking: bool) -> Any:  # noqa: ANN401 - whatever the server says
        if asking:
            with contextlib.suppress(driver.ResponseError):  # the answer to the command itself says more
                await self._connection.read_response()
        try:
            bound(self._connection)
            return await self._connection.read_response()
        except driver.ResponseError as error:
            return error


def _awaited(calls: Iterable[_Call]) -> bool:
    return not all(call.outcome.done() for call in calls)


def _fail(calls: list[_Call], error: BaseException) -> None:
    """End calls with an error; each gets its own copy, because callers add their tracebacks."""
    if isinstance(error, TimeoutError):
        error = driver.TimeoutError(f"no answer within {WITHIN:g} s")
    elif not isinstance(error, Exception):
        error = driver.ConnectionError("the event loop ended")
    for call in calls:
        call.end(copy(error), 0)


def limit() -> asyncio.Timeout:
    """A timeout of `WITHIN` seconds from now."""
    return asyncio.timeout(WITHIN)


async def connect(connection: AbstractConnection) -> None:
    """Connect it; if that fails, it is closed."""
    try:
        async with limit():
            await secured(connection)
    except BaseException:
        await drop(connection)
        raise


async def drop(connection: AbstractConnection) -> None:
    """Close a connection at once, whatever is wrong with it."""
    with contextlib.suppress(Exception):
        await connection.disconnect(nowait=True)

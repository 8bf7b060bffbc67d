"""The shard's end of the pipes to its parent: JSON lines, sent without making a job late."""

from __future__ import annotations

import json
import logging
import os
import select
from collections import deque
from typing import Any, Final

import anyio

from intervalq._timing.backends import spawn

_IN: Final = 0
_OUT: Final = 1
_CHUNK: Final = 1 << 16


class Pipes:
    """Standard input and output of a shard's process. Messages are sent in the background."""

    def __init__(self) -> None:
        self._unsent = bytearray()
        self._sending = False
        self._heard: deque[bytearray] = deque()
        self._rest = bytearray()
        os.set_blocking(_OUT, False)

    def send(self, **message: object) -> None:
        """Send a message without waiting."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._write()
        if self._unsent and not self._sending:
            self._sending = True
            spawn(self._send_rest)

    def flush(self) -> None:
        """Block until all messages are sent: the parent always reads, so this takes almost no time."""
        while self._unsent:
            select.select([], [_OUT], [])
            self._write()

    async def receive(self) -> dict[str, Any] | None:
        """The parent's next message; None: the parent is gone."""
        while not self._heard:
            await anyio.wait_readable(_IN)
            chunk = os.read(_IN, _CHUNK)
            if not chunk:
                return None
            self._rest += chunk
            if b"\n" in chunk:
                *lines, self._rest = self._rest.split(b"\n")
                self._heard.extend(lines)
        message: dict[str, Any] = json.loads(self._heard.popleft())
        return message

    async def _send_rest(self) -> None:
        while self._unsent:
            await anyio.wait_writable(_OUT)
            self._write()
        self._sending = False

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(_OUT, self._unsent[:_CHUNK])]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the parent is gone, which the other pipe will show
            self._unsent.clear()


class Forward(logging.Handler):
    """Sends the package's log messages to the parent, which has the terminal."""

    def __init__(self, pipes: Pipes) -> None:
        super().__init__(logging.WARNING)
        self._pipes = pipes

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._pipes.send(log=record.getMessage())

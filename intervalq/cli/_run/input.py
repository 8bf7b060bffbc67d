"""The input of a run: lines of a file or of standard input, read as they are needed."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

import anyio
import anyio.lowlevel

from intervalq.cli._run.jobs import MAX_LINE, BadLine

_CHUNK: Final = 1 << 16
_WATCHES_FILES: Final = hasattr(select, "poll")
"""Whether an event loop can watch files other than sockets, which is not so on Windows."""


class Input:
    """Numbered lines. A regular file can be read twice; other input yields each line once, as it arrives."""

    def __init__(self, path: str | None) -> None:
        self.name = "standard input" if path is None else os.fspath(path)
        self._file = 0 if path is None else os.open(path, os.O_RDONLY)
        self._own = path is not None
        self.regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        self._start = os.lseek(self._file, 0, os.SEEK_CUR) if self.regular else 0

    def scan(self) -> Iterator[tuple[int, str]]:
        """All lines of a regular file from its initial position, which is restored afterwards.

        Raises:
            BadLine: a line is too long.
        """
        splitter = _Splitter(self.name)
        while chunk := os.read(self._file, _CHUNK):
            yield from splitter.feed(chunk)
        yield from splitter.end()
        os.lseek(self._file, self._start, os.SEEK_SET)

    async def lines(self) -> AsyncIterator[tuple[int, str]]:
        """The lines as they arrive.

        Raises:
            BadLine: a line is too long.
        """
        splitter = _Splitter(self.name)
        while chunk := await self._chunk():
            for line in splitter.feed(chunk):
                yield line
        for line in splitter.end():
            yield line

    async def _chunk(self) -> bytes:
        if self.regular:
            await anyio.lowlevel.checkpoint()
        elif not _WATCHES_FILES:
            return await _read_apart(self._file)
        else:
            try:
                await anyio.wait_readable(self._file)
            except PermissionError:  # the event loop can't watch this kind of file; /dev/null is always ready
                await anyio.lowlevel.checkpoint()
        return os.read(self._file, _CHUNK)

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._own:
            os.close(self._file)


async def _read_apart(file: int) -> bytes:
    """Read in a thread that doesn't keep the process from ending, even if nothing comes any more."""
    loop = asyncio.get_running_loop()
    chunk: asyncio.Future[bytes] = loop.create_future()

    def settle(found: bytes | OSError) -> None:
        if chunk.done():
            return
        if isinstance(found, OSError):
            chunk.set_exception(found)
        else:
            chunk.set_result(found)

    def read() -> None:
        try:
            found: bytes | OSError = os.read(file, _CHUNK)
        except OSError as error:
            found = error
        with suppress(RuntimeError):  # the command has ended
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=read, name="intervalq input", daemon=True).start()
    return await chunk


class _Splitter:
    """Splits bytes into numbered lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[int, str]]:
        first, *more = chunk.split(b"\n")
        self._rest += first
        for piece in more:
            yield self._line(self._rest)
            self._rest = piece
        if len(self._rest) > MAX_LINE:
            self._line(self._rest)

    def end(self) -> Iterator[tuple[int, str]]:
        if self._rest:
            yield self._line(self._rest)

    def _line(self, line: bytes) -> tuple[int, str]:
        self._number += 1
        if len(line) > MAX_LINE:
            raise BadLine(self._name, self._number, f"is longer than {MAX_LINE} bytes")
        if self._number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # the UTF-8 mark of some editors
        # Not every file name is UTF-8: as elsewhere in Python, other bytes are passed through unchanged.
        return self._number, line.removesuffix(b"\r").decode(errors="surrogateescape")

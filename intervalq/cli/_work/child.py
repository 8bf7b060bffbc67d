"""A process of `intervalq work` among several: told what to do by its parent, and tells it what it did.

Its argument is a descriptor, and what to do as JSON. On the descriptor it writes JSON lines: `ready` once the
store has answered, `counts` now and then and at its end, `failed` when it can't work. It reads bytes from it:
`STOP` as if by a first signal, `END` as by a second. When it closes the parent is dead, and it stops.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from typing import Final

import anyio

from intervalq.cli._app import code_of, shown_error
from intervalq.cli._work import worker as _work_run

STOP: Final = b"s"
END: Final = b"e"

_TELL: Final = 0.1
"""Seconds between two accounts of what was done."""


class Parent:
    """Who started this process."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)

    def tell(self, **message: object) -> None:
        """Say something, if the parent lives."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    async def heed(self, ends: _work_run.Ends) -> None:
        """Do as the parent says, until it ends."""
        said = STOP
        while said:
            await anyio.wait_readable(self._socket)
            try:
                said = self._socket.recv(16)
            except ConnectionError:
                said = b""
            if END in said:
                ends.end()
            else:
                ends.stop()


def main(arguments: list[str]) -> None:
    """Work, and exit."""
    parent = Parent(int(arguments[0]))
    plan = _work_run.Plan(**json.loads(arguments[1]))
    try:
        handle = _work_run.load(plan.target)
        _work_run.log_to_stderr(process=True)

        async def beside(ends: _work_run.Ends) -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(tell_counts)
                await parent.heed(ends)

        async def tell_counts() -> None:
            told = handle.counts
            while True:
                await anyio.sleep(_TELL)
                if told != (counts := handle.counts):
                    parent.tell(counts=counts)
                    told = counts

        code = anyio.run(_work_run.run, handle, plan, lambda: parent.tell(ready=True), beside)
        parent.tell(counts=handle.counts)
    except Exception as error:
        known = shown_error(error)
        if known is None:
            raise
        parent.tell(failed=known.message)
        code = code_of(known)
    _work_run.end(code)


if __name__ == "__main__":
    main(sys.argv[1:])

"""One of several processes of `intervalq work`: it gets its plan from its parent and reports to it.

Its arguments are a descriptor and the plan as JSON. To the descriptor it writes JSON lines: `ready` once the
store has answered, `counts` from time to time and at its end, and `failed` if it can't work. From it, it
reads
bytes: `STOP`, which acts like a first signal, and `END`, like a second one. If the descriptor is closed, the
parent is dead, and the process stops.
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
"""Seconds between two reports to the parent."""


class Parent:
    """The connection to the parent process."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)

    def tell(self, **message: object) -> None:
        """Send a message, if the parent is alive."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    async def heed(self, ends: _work_run.Ends) -> None:
        """Obey the parent until it ends."""
        received = STOP
        while received:
            await anyio.wait_readable(self._socket)
            try:
                received = self._socket.recv(16)
            except ConnectionError:
                received = b""
            if END in received:
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
            reported = handle._outcomes
            while True:
                await anyio.sleep(_TELL)
                if reported != (counts := handle._outcomes):
                    parent.tell(counts=counts)
                    reported = counts

        code = anyio.run(_work_run.run, handle, plan, lambda: parent.tell(ready=True), beside)
        parent.tell(counts=handle._outcomes)
    except Exception as error:
        known = shown_error(error)
        if known is None:
            raise
        parent.tell(failed=known.message)
        code = code_of(known)
    _work_run.end(code)


if __name__ == "__main__":
    main(sys.argv[1:])

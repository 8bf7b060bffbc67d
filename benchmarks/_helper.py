"""A process that helps a benchmark, and ends with it, however that ends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

_ENDS_WITHIN = 10.0


@contextlib.contextmanager
def helper(*command: str, ready: bool = False) -> Iterator[str]:
    """A process that ends when its standard input is closed: by this process, or because this process ended.

    With `ready`, yields its first line, which it prints when it is ready; otherwise an empty text.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if ready else None,
        text=True,
        start_new_session=True,  # a keyboard interrupt is for the process that started it
    )
    try:
        yield process.stdout.readline().strip() if process.stdout is not None else ""
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

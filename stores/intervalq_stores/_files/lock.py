"""Exclusive locks on open files, between processes.

filelock knows the locks of each platform and their errors. But it polls while it waits, which favours whoever
asks most often: eight processes had a Jain index of 0.67 or less, and at most two thirds of the steps. So if
the kernel has a queue of its own, the wait is left to the kernel.
"""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from typing import Final

from filelock import lock_descriptor, unlock_descriptor

WAITS_IN_LINE: Final = find_spec("fcntl") is not None
"""Whether the kernel grants the lock in order. Otherwise it is polled, behind a second lock, the gate."""

_POLL: Final = 0.001
"""Seconds between two attempts to take a polled lock: about as long as a step holds it."""

_OPEN: set[int] = set()
"""The descriptors of lock files that are open in this process."""


def _close_in_child() -> None:
    # A forked child shares the lock itself, not only its file. So the child closes the descriptor, which
    # doesn't unlock it; otherwise the lock of a killed parent would be held as long as the child lives.
    for descriptor in _OPEN:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def opened(descriptor: int) -> int:
    """Register the descriptor of a lock file, which `let_go`, or a forked child, closes; returns it."""
    _OPEN.add(descriptor)
    return descriptor


def take(descriptor: int, gate: int | None = None) -> None:
    """Wait for the lock, without a limit.

    Args:
        descriptor: the descriptor of the lock file. This kind of lock is kept when the process closes another
            descriptor of the same file.
        gate: the descriptor of a second file, if the lock is polled: only the waiter that has the gate tries
            to take the lock, so that the last holder comes after the others. None: there is none.
    """
    if WAITS_IN_LINE:
        import fcntl  # noqa: PLC0415 - not on every platform

        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    if gate is None:
        lock_descriptor(descriptor, poll_interval=_POLL)
        return
    lock_descriptor(gate, poll_interval=_POLL)
    try:
        lock_descriptor(descriptor, poll_interval=_POLL)
    finally:
        unlock_descriptor(gate)


def try_to_take(descriptor: int) -> bool:
    """Take the lock if it is free; returns whether it was."""
    return lock_descriptor(descriptor, blocking=False)


def let_go(descriptor: int) -> None:
    """Release the lock, if it is held, and close the file."""
    # Unlocked explicitly, because closing doesn't do that while a forked child has the same descriptor.
    with contextlib.suppress(OSError):
        unlock_descriptor(descriptor)
    _OPEN.discard(descriptor)
    os.close(descriptor)

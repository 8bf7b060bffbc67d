"""Exclusive locks on open files, between processes: taken, tried, and let go.

filelock knows the locks of each platform and their errors. It polls while it waits, which hands a lock to
whoever asks most often: with eight processes a Jain index of 0.67 or less, and at most two thirds of the
steps. So where the kernel has a queue of its own, the wait is the kernel's.
"""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec
from typing import Final

from filelock import lock_descriptor, unlock_descriptor

WAITS_IN_LINE: Final = find_spec("fcntl") is not None
"""Whether the kernel hands the lock on in order. Elsewhere it is polled, behind a gate."""

_POLL: Final = 0.001
"""Seconds between two attempts where the lock is polled: about as long as a step holds it."""

_OPEN: set[int] = set()
"""The descriptors of lock files that are open in this process."""


def _close_in_child() -> None:
    # A forked child shares the lock itself, not only its file. Closing doesn't unlock, keeping it would: the
    # lock of a parent that was killed would be held for as long as the child lives.
    for descriptor in _OPEN:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def opened(descriptor: int) -> int:
    """Note the descriptor of a lock file, which `let_go` closes, or a fork does in the child; returns it."""
    _OPEN.add(descriptor)
    return descriptor


def take(descriptor: int, gate: int | None = None) -> None:
    """Wait for the lock. The wait has no bound.

    Args:
        descriptor: of the lock file. Of all kinds of locks this one is kept when the process closes another
            descriptor of the same file.
        gate: of a second file, where the lock is polled: of those who wait, only the one that has the gate
            tries for the lock, so that whoever has just had it comes behind the others. None: there is none.
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
    """Give the lock up, if it is held, and close the file."""
    # Unlocked by name, because closing doesn't do it while a forked child has the same descriptor.
    with contextlib.suppress(OSError):
        unlock_descriptor(descriptor)
    _OPEN.discard(descriptor)
    os.close(descriptor)

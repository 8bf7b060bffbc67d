"""The rules of exclusive locks: who holds one, until when, and with which fencing number.

A lock is held until it expires, and its holder refreshes it. A holder that stood still may not know that its
lock has expired and that somebody else has it now, so each one has a fencing number that is higher than those
of all holders before. What the lock protects can refuse numbers that are lower than one that it has seen
(sequencers in Burrows, "The Chubby lock service", 2006).
"""

from __future__ import annotations

from typing import Final

from intervalq.tasks._spec.commands import Acquire, Acquired, Release
from intervalq.tasks._spec.row import SECOND, LockRow
from intervalq.tasks._spec.table import Table

KEPT: Final = 86_400 * SECOND
"""How long a lock is kept after it has expired or was released. Fencing numbers are at least the time in
microseconds, so they rise even then, unless the store's clock was set back by more than this."""


def acquire(table: Table, command: Acquire, now: int) -> Acquired:
    """Give a free lock to its caller; extend the lock of its holder."""
    lock = table.lock(command.name)
    if lock is not None and lock.until - now > lock.expiry:  # the clock was set back
        lock = lock._replace(until=now + lock.expiry)
        table.put_lock(lock)
    until = now + command.expiry
    is_own = lock is not None and lock.owner == command.owner
    if lock is not None and is_own and (command.refresh or lock.until > now):
        table.put_lock(lock._replace(until=until, expiry=command.expiry))
        return Acquired(lock.fence)
    if command.refresh:
        return Acquired(0)
    if lock is not None and lock.owner and lock.until > now:
        return Acquired(0, lock.until - now)
    table.sweep_locks(now - KEPT)
    fence = now if lock is None else max(now, lock.fence + 1)
    table.put_lock(LockRow(command.name, command.owner, fence, until, command.expiry))
    return Acquired(fence)


def release(table: Table, command: Release, now: int) -> bool:
    """Free a lock, unless somebody else has it."""
    lock = table.lock(command.name)
    if lock is None or lock.owner != command.owner:
        return False
    table.put_lock(lock._replace(owner="", until=now, expiry=0))
    return True

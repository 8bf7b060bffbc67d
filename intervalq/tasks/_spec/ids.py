"""Ids of tasks and sessions: UUIDs of version 7 (RFC 9562), ascending within a process."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

PLAIN: Final = "plain-"
"""The prefix of plain tasks' ids, which say where the task is; a task keeps its id if it becomes ordinary."""

DOCS: Final = "docs#"
"""The prefix of the queues and ids of docs, see `service._entroq.docs`: nothing else can have such a name."""

_POOL: Final = 512


class _Last(threading.local):
    def __init__(self) -> None:
        self.millisecond = 0
        self.count = 0
        self.pid = 0
        self.pool = b""
        """Random bytes for the next ids: asking the system for each id would double its cost."""


_last: Final = _Last()


def new_id() -> str:
    """An id that is greater than the last one of this thread, even if the clock steps back."""
    pool = _last.pool
    if not pool or _last.pid != os.getpid():  # a forked child must not repeat its parent's ids
        _last.pid = os.getpid()
        pool = os.urandom(_POOL)
    random = int.from_bytes(pool[:8], "big")
    _last.pool = pool[8:]
    now = time.time_ns() // 1_000_000
    if now > _last.millisecond:
        _last.millisecond = now
        _last.count = random >> 38  # from here on it counts up within the millisecond: 26 random bits
    else:
        _last.count += 1
    # 48 bits of time, version 7, 32 bits of counter around the variant, 42 random bits
    count = _last.count
    number = _last.millisecond << 80 | 7 << 76 | (count >> 20 & 0xFFF) << 64 | 2 << 62
    number |= (count & 0xFFFFF) << 42 | random & 0x3FFFFFFFFFF
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_ids(count: int) -> list[str]:
    """`count` ids, in ascending order."""
    return [new_id() for _ in range(count)]

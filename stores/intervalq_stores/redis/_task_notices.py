"""What messages of Redis tell a session of tasks: which of its claims were cancelled."""

from __future__ import annotations

import json
from contextlib import suppress

from intervalq.tasks.rules import Delete, Worked


def told(messages: list[bytes]) -> Worked | None:
    """What messages tell a session; None: nothing. Others may send messages, too: wrong ones are ignored."""
    cancelled: list[Delete] = []
    for message in messages:
        with suppress(ValueError, TypeError, RecursionError):
            parts = [Delete(id_, version) for id_, version in json.loads(message)]
            if all(type(part.id) is str and type(part.version) is int for part in parts):
                cancelled += parts
    return Worked(cancelled=tuple(cancelled)) if cancelled else None

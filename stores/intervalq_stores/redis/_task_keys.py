"""The keys and channels of tasks in Redis."""

from __future__ import annotations

from typing import Any, Final

from intervalq.tasks.rules import Acquire, Command, Release

_BASE: Final = "intervalq:{tasks}:"  # the text in braces determines the cluster's slot

KEYS: Final = tuple(_BASE + part for part in ("tasks", "index", "sessions", "marks", "meta"))
"""The keys of all tasks, sessions and dedupe keys."""

WAKE: Final = f"{_BASE}wake:"
"""The beginning of the channel of a session, or of those who wait for a lock."""


def day_keys(day: int | str) -> tuple[str, str]:
    """The keys of the outcomes that expire on a day, counted from 1970."""
    return f"{_BASE}outcomes:{day}", f"{_BASE}ended:{day}"


def keys_of(command: Command[Any]) -> tuple[str, ...]:
    """The keys that a command reads or writes."""
    return (f"{_BASE}lock:{command.name}",) if isinstance(command, Acquire | Release) else KEYS

"""The class that a URL's scheme selects: from the bundled backends, or from an installed package."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from intervalq.errors import UnknownStore

QUEUES: Final = "intervalq.stores"
TASKS: Final = "intervalq.task_stores"
LEDGERS: Final = "intervalq.ledgers"

_BACKENDS: Final = {
    "memory": "memory",
    "file": "json",
    "sqlite": "sqlite",
    **dict.fromkeys(("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"), "redis"),
    **dict.fromkeys(("postgresql", "postgres"), "postgres"),
    **dict.fromkeys(("nats", "tls"), "nats"),
    **dict.fromkeys(("intervalq", "intervalqs"), "remote"),
}
"""The folder of `intervalq_stores` for each scheme. They are listed here instead of as entry points, so that
they are found in applications that were packed without package metadata."""

_CLASSES: Final = {
    QUEUES: {
        "memory": "MemoryStore",
        "json": "JSONFileStore",
        "sqlite": "SQLiteStore",
        "redis": "RedisStore",
        "postgres": "PostgresStore",
        "nats": "NATSStore",
        "remote": "RemoteStore",
    },
    TASKS: {
        "memory": "MemoryTaskStore",
        "sqlite": "SQLiteTaskStore",
        "redis": "RedisTaskStore",
        "postgres": "PostgresTaskStore",
        "nats": "NATSTaskStore",
        "remote": "RemoteTaskStore",
    },
    LEDGERS: {
        "memory": "MemoryLedgerStore",
        "json": "JSONLedgerStore",
        "sqlite": "SQLiteLedgerStore",
        "redis": "RedisLedgerStore",
        "postgres": "PostgresLedgerStore",
        "remote": "RemoteLedgerStore",
    },
}
_MODULES: Final = {QUEUES: "queues", TASKS: "tasks", LEDGERS: "ledgers"}


def backend(group: str, scheme: str) -> Callable[[str], Any]:
    """The class of stores with this scheme; it is called with a URL.

    Args:
        group: the kind of store: `QUEUES`, `TASKS` or `LEDGERS`. Other packages add theirs by entry points of
            that group; bundled ones can't be replaced.
        scheme: in lower case.

    Raises:
        UnknownStore: there is none.
        MissingExtra, StoreError: raised by its module if a driver is missing.
    """
    if (folder := _BACKENDS.get(scheme)) in _CLASSES[group]:
        module = import_module(f"intervalq_stores.{folder}.{_MODULES[group]}")
        found: Callable[[str], Any] = getattr(module, _CLASSES[group][folder])
        return found
    # It takes a sixth of the time in which intervalq is imported, and only stores of others need it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    installed = {point.name: point for point in entry_points(group=group)}
    if scheme in installed:
        found = installed[scheme].load()
        return found  # noqa: RET504 - the type of an entry point's object is unknown
    known = {*installed, *(name for name, folder in _BACKENDS.items() if folder in _CLASSES[group])}
    paces = group != QUEUES and (scheme in _BACKENDS or bool(entry_points(group=QUEUES, name=scheme)))
    raise UnknownStore(scheme, sorted(known), group=group, paces=paces)

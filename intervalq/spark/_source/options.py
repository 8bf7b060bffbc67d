"""The options of the data source `intervalq`, and their checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from intervalq._queue.options import whole
from intervalq._spec import parse
from intervalq.errors import InvalidOption, short
from intervalq.ledger.store import open_ledger_store
from intervalq.store import default_url as default_ledgers
from intervalq.store import given_url, sound_url
from intervalq.tasks._claim import values as _values
from intervalq.tasks.store import default_url as default_tasks
from intervalq.tasks.store import open_task_store

TABLES: Final = ("tasks", "queues", "ledger", "log")

_WRITE: Final = ("store", "queue", "key", "value", "exclusive_key", "run", "max_bytes")
_READ: Final = ("store", "table", "queue", "ledger", "path")
_STREAM: Final = ("store", "queue", "stream", "max_tasks")
_OF_SPARK: Final = ("checkpointlocation", "queryname")
"""Options that Spark adds to those of a streaming source or sink."""

_FILES: Final = ("sqlite", "file")
_MAX_STREAM: Final = 100
"""The longest name of a stream, in characters, so that a queue can be named after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows become tasks; names of columns are None where there is none."""

    store: str
    queue: str | None
    """None: the column `queue` has it for each row."""
    key: str | None
    value: str | None
    exclusive_key: str | None
    run: str | None
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The table to read."""

    table: str
    store: str = ""
    queue: str | None = None
    ledger: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What a stream claims, and the name under which it keeps its claims."""

    store: str
    queue: str
    stream: str
    max_tasks: int


def write_options(options: Mapping[str, str], columns: list[str], *, streams: bool) -> WriteOptions:
    """The options of a write of these columns.

    Raises:
        InvalidOption, InvalidName, UnknownStore, MissingExtra: something can't be used.
    """
    given = _known(options, _WRITE, "a write")
    if streams and "run" in given:
        raise InvalidOption("run= names a batch write; a stream is identified by its query: omit run")
    queue = given.get("queue")
    if queue is None and "queue" not in columns:
        raise InvalidOption("no queue is given for the rows: give the option queue, or a column named queue")
    for name in ("key", "value", "exclusive_key"):
        if name in given and given[name] not in columns:
            known = ", ".join(columns)
            raise InvalidOption(
                f"{name}={short(given[name])} is not a column of these rows; they have {known}"
            )
    run = given.get("run")
    return WriteOptions(
        store=_tasks_at(given),
        queue=None if queue is None else _values.queue_name(queue),
        key=given.get("key"),
        value=given.get("value"),
        exclusive_key=given.get("exclusive_key"),
        run=None if run is None else _values.text("run", run),
        max_bytes=_number(given, "max_bytes", _values.MAX_BYTES, 1 << 26),
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read.

    Raises:
        InvalidOption, InvalidName, UnknownStore, MissingExtra: something can't be used.
    """
    given = _known(options, (*_READ, "stream", "max_tasks"), "a read")
    table = given.get("table", "tasks")
    if table not in TABLES:
        raise InvalidOption(f"there is no table={short(table)}; there are {', '.join(TABLES)}")
    if table == "log":
        if not given.get("path"):
            raise InvalidOption("give path= with table=log: the file that `intervalq run --output` wrote")
        return ReadOptions(table=table, path=os.path.abspath(given["path"]))  # noqa: PTH100 - may be a pattern
    if table == "ledger":
        if not given.get("ledger"):
            raise InvalidOption("give ledger= with table=ledger: the name of the ledger")
        return ReadOptions(table=table, store=_ledgers_at(given), ledger=given["ledger"])
    queue = given.get("queue")
    return ReadOptions(
        table=table,
        store=_tasks_at(given),
        queue=None if queue is None else _values.queue_name(queue),
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a stream to read.

    Raises:
        InvalidOption, InvalidName, UnknownStore, MissingExtra: something can't be used.
    """
    given = _known(options, _STREAM, "a stream")
    for name, why in (
        ("queue", "the queue whose tasks are claimed"),
        ("stream", "a name under which tasks are kept until the checkpoint has them; each query has its own"),
    ):
        if not given.get(name):
            raise InvalidOption(f"give {name}= to read a stream: {why}")
    stream = parse.name(given["stream"])
    if len(stream) > _MAX_STREAM:
        raise InvalidOption(f"stream={short(stream)} is too long: {_MAX_STREAM} characters are allowed")
    return StreamOptions(
        store=_tasks_at(given),
        queue=_values.queue_name(given["queue"]),
        stream=stream,
        max_tasks=_number(given, "max_tasks", 10_000, 1_000_000),
    )


def _known(options: Mapping[str, str], names: tuple[str, ...], what: str) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    unknown = [name for name in given if name not in names and name not in _OF_SPARK]
    if unknown:
        raise InvalidOption(f"{what} has no option {short(unknown[0])}; there are {', '.join(names)}")
    return given


def _number(given: dict[str, str], name: str, usual: int, most: int) -> int:
    written = given.get(name, str(usual))
    if not written.isdecimal() or not written.isascii():
        raise InvalidOption(f"{name}={short(written)} is not a whole number from 1 to {most}")
    return whole(name, int(written[:20]), 1, most)


def _tasks_at(given: dict[str, str]) -> str:
    url = given_url(given.get("store")) or default_tasks()
    scheme, url = sound_url(url, otherwise="sqlite")
    _refuse_memory(scheme)
    store = open_task_store(url)
    return store.url if scheme in _FILES else url  # absolute: workers run in other folders


def _ledgers_at(given: dict[str, str]) -> str:
    url = given_url(given.get("store")) or default_ledgers()
    scheme, url = sound_url(url, otherwise="file")
    _refuse_memory(scheme)
    store = open_ledger_store(url)
    return store.url if scheme in _FILES else url


def _refuse_memory(scheme: str) -> None:
    if scheme == "memory":
        raise InvalidOption(
            "memory:// belongs to one process, and Spark runs several: give store= a SQLite file (one "
            "machine) or postgresql:// (a cluster)"
        )

"""The spec of a pipeline: a TOML file, checked as a whole before Spark starts."""

from __future__ import annotations

import glob
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from intervalq import IntervalQueue
from intervalq._queue.options import whole
from intervalq._spec import parse
from intervalq._spec.limits import rules_of
from intervalq._timing.rates import rate
from intervalq.errors import InvalidOption, short
from intervalq.pipeline._function import Function, function_of
from intervalq.pipeline._table import Table
from intervalq.spark._formats import is_name
from intervalq.store import default_url, given_url, sound_url

Format = Literal["parquet", "csv", "json", "table", "delta", "iceberg"]
OutputFormat = Literal["parquet", "delta", "iceberg"]

REASONS: Final = ("malformed", "key_missing", "key_invalid", "duplicate_key", "call_failed")
"""Reasons for rejecting rows, besides the conditions of the spec."""

_TABLES: Final = ("pipeline", "input", "call", "queue")
_PIPELINE: Final = ("name", "output", "format", "tables")
_INPUT: Final = ("path", "format", "key", "require", "options")
_CALL: Final = (
    *("function", "schema", "setup", "columns", "cost", "settle", "concurrency", "window", "retries"),
    *("on_unknown", "stop_after", "version", "replay", "tasks", "latency"),
)
_QUEUE: Final = (
    *("name", "rate", "interval", "limits", "store", "burst", "tolerance"),
    *("max_running", "retries", "backoff"),
)
_ENDINGS: Final[dict[str, Format]] = {
    ".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
_PATTERN: Final = re.compile(r"[*?\[\]{}\\]")
_SCHEMA: Final = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The input with the requests."""

    path: str
    """A URI, possibly with wildcards; or the name of a table."""
    format: Format
    key: str
    require: dict[str, str]
    """SQL conditions, by name."""
    options: dict[str, str]
    """Options of Spark's reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is called for each row; see `intervalq.spark.paced`."""

    function: Function
    schema: str
    setup: Function | None
    columns: tuple[str, ...] | None
    cost: Function | int | dict[str, int]
    settle: Function | None
    concurrency: int
    window: int
    retries: int | None
    on_unknown: Literal["retry", "fail"]
    stop_after: int | None
    version: str | None
    replay: bool
    tasks: int | None
    latency: float | None
    """How many seconds a call takes, from which the number of tasks is derived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A pipeline, as its file describes it."""

    file: Path
    name: str
    """The name of the pipeline, of its runs, and of its ledger."""
    output: str
    """The folder for everything that it writes: a URI or an absolute path."""
    format: OutputFormat
    """The format of the tables: results, rejects, log."""
    tables: str | None
    """The schema of a catalog that has the tables; None: they are in the output folder."""
    input: Input
    call: Call
    queue: IntervalQueue
    store: str = field(repr=False)  # with its secrets
    """The URL of the store of queue and ledger."""

    @property
    def interval(self) -> float | None:
        """Seconds between two starts; None: the interval that the queue already has."""
        micros = self.queue._options.interval  # noqa: SLF001 - its own package
        return None if micros is None else micros / 1e6


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """The pipeline that a file describes. This starts nothing, and contacts no store.

    Paths in the file are relative to it. The function is imported from the file's folder or from installed
    packages.

    Raises:
        InvalidOption: the file isn't a valid spec; the error names the table, the field and the remedy.
        OSError: it can't be read.
        MissingExtra: the driver of its store isn't installed.
    """
    file = Path(path).absolute()
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{file.name}: this is not TOML: {error}") from None
    return _Reader(file, content).spec()


class _Reader:
    """Parses a spec, table by table."""

    def __init__(self, file: Path, content: dict[str, Any]) -> None:
        self._file = file
        for name in content:
            if name not in _TABLES:
                raise InvalidOption(
                    f"{file.name}: [{name}] is not known; the tables are "
                    f"{', '.join(f'[{known}]' for known in _TABLES)}"
                )
        self._content = content

    def _table(self, name: str, fields: tuple[str, ...]) -> Table:
        if name not in self._content:
            raise InvalidOption(f"{self._file.name}: there is no table [{name}]: it has {', '.join(fields)}")
        return Table(self._file.name, name, self._content[name], fields)

    def spec(self) -> Spec:
        pipeline = self._table("pipeline", _PIPELINE)
        name = pipeline.text("name", "give the name of its runs and of its ledger")
        pipeline.checked("name", lambda: parse.name(name))
        output = self._path(pipeline.text("output", "give a folder for results, rejects, log and report"))
        if _PATTERN.search(output):
            raise pipeline.wrong("output", f"= {short(output)} must be a path without * ? [ ] {{ }} \\")
        form, tables = self._output_tables(pipeline)
        source = self._input()
        call = self._call()
        queue, store = self._queue(name)
        return Spec(
            file=self._file, name=name, output=output, format=form, tables=tables, input=source, call=call,
            queue=queue, store=store,
        )  # fmt: skip

    @staticmethod
    def _output_tables(table: Table) -> tuple[OutputFormat, str | None]:
        """The format and the schema of the published tables."""
        form = cast("OutputFormat", table.one_of("format", ("parquet", "delta", "iceberg")) or "parquet")
        schema = table.maybe("tables")
        if schema is None and form == "iceberg":
            raise table.wrong(
                "tables", 'is missing: Iceberg keeps tables in a catalog: give "catalog.schema"'
            )
        if schema is not None and form == "parquet":
            raise table.wrong("tables", 'needs format = "delta" or "iceberg": Parquet is kept in the output')
        if schema is not None and not _SCHEMA.fullmatch(schema):
            raise table.wrong("tables", f'= {short(schema)} must be the name of a schema: "catalog.schema"')
        return form, schema

    def _path(self, text: str) -> str:
        return text if "://" in text else str(Path(os.path.normpath(self._file.parent / text)))

    def _input(self) -> Input:
        table = self._table("input", _INPUT)
        path = table.text("path", "give the file or the folder of the requests, or the name of a table")
        ending = Path(path.rstrip("/")).suffix.lower()
        form = cast("Format | None", table.one_of("format", get_args(Format)))
        if form is None:
            if ending not in _ENDINGS:
                raise table.wrong(
                    "format", f"is missing, and the suffix of {short(path)} doesn't tell it: add format = "
                    '"parquet", "csv", "json" (one JSON object per line), "delta", "iceberg" or "table"'
                )  # fmt: skip
            form = _ENDINGS[ending]
        if not is_name(path, form):
            path = self._path(path)
            if "://" not in path:
                if not glob.glob(path):  # noqa: PTH207 - a whole path with wildcards
                    raise table.wrong(
                        "path", f"= {short(path)}: nothing is there: check the path, relative to {self._file}"
                    )
                path = f"file://{path}"  # a bare path would belong to Spark's default file system
        require = table.texts("require")
        for name in require:
            if name in REASONS or not name.strip() or name.startswith("_"):
                raise InvalidOption(
                    f"{self._file.name}: [input.require] {short(name)} can't be the name of a condition: "
                    "the pipeline uses it; choose another"
                )
        return Input(
            path=path,
            format=form,
            key=table.text("key", "give the column whose value identifies a row"),
            require=require,
            options=table.texts("options"),
        )

    def _call(self) -> Call:
        table = self._table("call", _CALL)
        target = table.text("function", 'give "module:name" of a function that takes a row and its context')
        latency = table.any("latency")
        folder = self._file.parent

        def named(field_: str) -> Function | None:
            name = table.maybe(field_)
            return None if name is None else table.checked(field_, lambda: function_of(name, folder))

        concurrency = self._number(table, "concurrency", 16, 10_000)
        return Call(
            function=table.checked("function", lambda: function_of(target, folder)),
            schema=table.text(
                "schema", 'give the columns of the function\'s result, as "status int, body string"'
            ),
            setup=named("setup"),
            columns=table.names("columns"),
            cost=self._cost(table, named),
            settle=named("settle"),
            concurrency=concurrency,
            window=self._number(table, "window", max(64, 2 * concurrency), 1_000_000),
            retries=table.whole("retries"),
            on_unknown=cast(
                "Literal['retry', 'fail']", table.one_of("on_unknown", ("retry", "fail")) or "retry"
            ),
            stop_after=self._number(table, "stop_after", 1, 1_000_000) if "stop_after" in table else None,
            version=table.maybe("version"),
            replay=table.flag("replay"),
            tasks=self._number(table, "tasks", 1, 100_000) if "tasks" in table else None,
            latency=None
            if latency is None
            else table.checked("latency", lambda: parse.duration(latency, what="latency") / 1e6),
        )

    @staticmethod
    def _cost(table: Table, named: Callable[[str], Function | None]) -> Function | int | dict[str, int]:
        """A number, units by name, or a function of the row; `paced` checks the first two."""
        value = table.any("cost")
        if isinstance(value, str):
            return named("cost") or 1
        if value is not None and not isinstance(value, int | dict):
            raise table.wrong(
                "cost",
                f'= {short(value)} must be a number, a table such as {{ tokens = 100 }}, or "module:name"',
            )
        return 1 if value is None else value

    @staticmethod
    def _number(table: Table, field_: str, otherwise: int, most: int) -> int:
        value = table.whole(field_)
        return otherwise if value is None else table.checked(field_, lambda: whole(field_, value, 1, most))

    def _queue(self, name: str) -> tuple[IntervalQueue, str]:
        table = self._table("queue", _QUEUE)
        given = table.maybe("store")
        store = table.checked("store", lambda: self._store(given))
        names = [one for one in _QUEUE if one in table and one not in {"name", "store"}]
        # Each field is first checked alone, so that an error names the field that is wrong.
        alone: dict[str, Callable[[Any], object]] = {
            "rate": rate,
            "interval": parse.interval,
            "tolerance": lambda value: parse.duration(value, least=1, what="tolerance"),
            "backoff": lambda value: parse.duration(value, what="backoff"),
            "burst": lambda value: whole("burst", value, 1),
            "max_running": lambda value: whole("max_running", value, 1),
            "retries": lambda value: whole("retries", value, 0),
            "limits": rules_of,
        }
        if "limits" in table and "rate" not in table and "interval" not in table:
            raise table.wrong(
                "limits", "need a pace beside them, by which starts are audited: give rate or interval, too"
            )
        for one in names:
            table.checked(one, lambda one=one: alone[one](table.any(one)))  # type: ignore[misc]
        called = table.maybe("name") or name
        table.checked("name", lambda: parse.name(called))
        settings = {one: table.any(one) for one in names}
        both = " and ".join(names) or "rate"
        return table.checked(both, lambda: IntervalQueue(called, store=store, **settings)), store

    def _store(self, given: str | None) -> str:
        """One URL for the driver and the executors, whose environments may differ."""
        if given is not None and "://" not in given:
            sound_url(given, otherwise="file")  # refuses text that only looks like a path
            given = str(self._file.parent / Path(given).expanduser())
        scheme, url = sound_url(given_url(given) or default_url(), otherwise="file")
        if scheme == "memory":
            raise InvalidOption(
                "memory:// belongs to one process, and every Python worker is another: use a path that ends "
                "with .db on one machine, redis:// or postgresql:// on several"
            )
        return url

"""Checks the arguments of `paced` on the driver, before anything runs."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intervalq import IntervalQueue
from intervalq._queue.options import Cost, Duration, Settle, whole
from intervalq._spec import parse
from intervalq._spec.codec import Codec, checked_codec
from intervalq.errors import InvalidOption, MissingExtra, StoreError, UnknownStore, short
from intervalq.ledger._files import OwnFiles, file_system
from intervalq.ledger.rules import MAX_ROWS
from intervalq.ledger.store import open_ledger_store
from intervalq.spark._compat import arrow_schema
from intervalq.spark._paced.job import Errors, Job, Policy
from intervalq.store import sound_url

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_MOST_ROWS: Final = 4 * MAX_ROWS
"""A quarter of them is claimed at a time."""

_TURN, _MOST_IN_TURN = 50_000, 16
"""How long a task starts rows in a row while others wait, in microseconds, and how many it starts at most."""


def job_maker(
    function: Callable[..., Any],
    *,
    queue: IntervalQueue | None,
    cost: Cost | Callable[[dict[str, Any]], Cost],
    settle: Settle[Any] | None,
    key: str | None,
    columns: Iterable[str] | None,
    run: str | None,
    ledger: str | None,
    codec: Codec | None,
    large_answers: str | None,
    concurrency: int,
    window: int | None,
    on_unknown: Policy,
    errors: Errors,
    stop_after: int | None,
    version: str | None,
    replay: bool,
    canary: bool,
    retries: int | None,
    setup: Callable[[], Any] | None,
    flush_rows: int,
    flush_s: float,
    drain: Duration,
    log: str | None,
) -> Callable[[StructType], Job]:
    """A factory of the job, for when the schema is known, which needs a session. Arguments as for `paced`."""
    _check_function(function, setup)
    _check_ledger(ledger, queue, key, run, codec)
    _check_cost(queue, cost, settle)
    _check_policies(on_unknown, errors, log)
    _check_answers(ledger, version, large_answers, replay=replay)
    concurrency = whole("concurrency", concurrency, 1, 10_000)
    ours = None if queue is None else _of_tasks(queue)
    return _maker(
        function,
        setup,
        queue=ours,
        cost=cost,
        settle=settle,
        key=key,
        takes=_columns(columns),
        run="" if run is None else parse.name(run),
        has_ledger=ledger is not None,
        ledger_url=_ledger_url(ledger, queue),
        codec=checked_codec(codec),
        large_answers=_folder(large_answers),
        again=on_unknown == "retry",
        replay=replay,
        canary=canary,
        raises=errors == "raise",
        stop_after=_stop_after(stop_after, errors),
        version=version,
        concurrency=concurrency,
        retries=whole("retries", retries, 0) if retries is not None else (ours._usual.retries if ours else 0),
        backoff=ours._usual.backoff if ours else 1.0,
        drain=parse.duration(drain, what="drain") / 1e6,
        log=log,
        **_flow(window, concurrency, flush_rows, flush_s),
    )


def _flow(window: int | None, concurrency: int, flush_rows: int, flush_s: float) -> dict[str, Any]:
    """How many rows a task holds, and when it hands them on."""
    least = max(64, 2 * concurrency) if window is None else whole("window", window, concurrency)
    return {
        "window": least,
        "most_rows": max(_MOST_ROWS, least) if window is None else least,
        "flush_rows": whole("flush_rows", flush_rows, 1),
        "flush_s": parse.duration(flush_s, least=1_000, what="flush_s") / 1e6,
    }


def _maker(
    function: Callable[..., Any], setup: Callable[[], Any] | None, **settings: Any
) -> Callable[[StructType], Job]:
    """A factory of the job, called once the schema is known, which needs a session."""

    def job_of(given: StructType) -> Job:
        return Job(
            function=function,
            blocks=not _is_async(function),
            setup=setup,
            setup_identity=_identity(setup),
            columns=arrow_schema(given),
            schema=schema_hash(given),
            function_name=_name_of(function),
            **settings,
        )

    return job_of


def schema_hash(given: StructType) -> str:
    """A fingerprint of columns, by which a ledger recognizes the schema of an answer."""
    return hashlib.sha256(given.json().encode()).hexdigest()[:12]


def _of_tasks(queue: IntervalQueue) -> IntervalQueue:
    """The same queue for a task, which starts as many rows in a row as have slots in a short time.

    Where slots are close together, one request serves several starts. Where they are not, a task holds one
    ticket, so that 1,000 tasks hold 1,000 slots.
    """
    if queue._has_own_store:
        raise InvalidOption(f"{queue!r} has a store object, which can't be pickled: give the queue a URL")
    _check_store(queue._options.store_url)  # noqa: SLF001 - its own package
    options = queue._options  # noqa: SLF001 - its own package
    in_turn = 1 if options.interval is None else max(1, min(_MOST_IN_TURN, _TURN // options.interval))
    return queue._like(replace(options, lookahead=in_turn))  # noqa: SLF001 - its own package


def _check_policies(on_unknown: Policy, errors: Errors, log: str | None) -> None:
    for what, value, known in (
        ("on_unknown", on_unknown, ("retry", "fail")),
        ("errors", errors, ("raise", "column")),
    ):
        if value not in known:
            raise InvalidOption(f"{what}={short(value)} must be {known[0]!r} or {known[1]!r}")
    if errors == "column" and log is None:
        raise InvalidOption('errors="column" needs the log, whose field `error` reports them')


def _stop_after(given: int | None, errors: Errors) -> int | None:
    if given is None:
        return None
    if errors == "raise":
        raise InvalidOption(
            'stop_after= counts the errors that errors="column" reports; with errors="raise" the first one '
            "stops the task: omit it"
        )
    return whole("stop_after", given, 1, 1_000_000)


def _check_answers(
    ledger: str | None, version: str | None, large_answers: str | None, *, replay: bool
) -> None:
    if version is not None:
        parse.name(version, what="version")
    if ledger is None and (version is not None or replay or large_answers is not None):
        raise InvalidOption(
            "version=, replay= and large_answers= apply to the answers in a ledger, but ledger=None keeps "
            "none: omit them"
        )


def _columns(given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = () if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidOption(f"columns={short(given)} must be a list of different names of columns")
    return names


def _folder(given: str | None) -> str | None:
    """The folder of large answers as each executor finds it."""
    if given is None:
        return None
    if not isinstance(given, str) or not given.strip():
        raise InvalidOption(
            f"large_answers={short(given)} must be a path, or a URL such as s3://bucket/folder"
        )
    files, path = file_system(given)
    return str(Path(path).expanduser().absolute()) if isinstance(files, OwnFiles) else given


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '')}.{name}"


def _check_ledger(
    ledger: str | None, queue: IntervalQueue | None, key: str | None, run: str | None, codec: Codec | None
) -> None:
    if codec is not None and ledger is None:
        raise InvalidOption("codec= applies to results in a ledger, but ledger=None keeps none: omit it")
    if ledger is not None and (key is None or run is None):
        raise InvalidOption(
            "a ledger needs key= (the column that identifies a row) and run= (a name that a repeated job "
            "uses again); with ledger=None rows may be called more than once"
        )
    if ledger == "store" and queue is None:
        raise InvalidOption("without a queue, give ledger= the URL of a store, or None")


def _check_cost(
    queue: IntervalQueue | None, cost: Cost | Callable[[dict[str, Any]], Cost], settle: Settle[Any] | None
) -> None:
    if queue is None:
        if cost != 1 or settle is not None:
            raise InvalidOption("cost= and settle= count in the limits of a queue: give queue=, or omit them")
    elif not callable(cost):
        queue._plan(cost=cost, settle=settle)
    elif settle is not None and not callable(settle):
        raise InvalidOption(f"settle={short(settle)} must be a function of the call's result")


def _check_store(url: str | None) -> None:
    if url is not None and sound_url(url, otherwise="file")[0] == "memory":
        raise InvalidOption(
            "memory:// belongs to one process, and every Python worker is another: use sqlite:// or a path "
            "on one machine, redis:// or postgresql:// on several"
        )


def _ledger_url(ledger: str | None, queue: IntervalQueue | None) -> str | None:
    """The URL of the ledger's store; None: there is no ledger, or it is in the default store."""
    url = ledger
    if ledger == "store":
        url = None if queue is None else queue._options.store_url  # noqa: SLF001 - its own package
    _check_store(url)
    if ledger is not None:
        _check_holds_ledgers(url)
    return url


def _check_holds_ledgers(url: str | None) -> None:
    try:
        with suppress(MissingExtra, StoreError):  # the driver may lack what only executors need
            open_ledger_store(url)
    except UnknownStore as unknown:
        raise InvalidOption(
            f"the ledger can't be in this store: {unknown}; or give ledger= the URL of another store, such "
            "as redis:// or postgresql://, or None, for calls that may be repeated"
        ) from None


def _check_function(function: object, setup: object) -> None:
    if not callable(function):
        raise InvalidOption(f"{short(function)} is not a function: give one that takes a row and its context")
    try:
        inspect.signature(function).bind({}, None)
    except TypeError:
        raise InvalidOption(
            f"{short(function)} must take two arguments, the row and its context: (row, ctx)"
        ) from None
    except ValueError:
        pass  # a function of C code, whose signature is unknown
    if setup is not None and not callable(setup):
        raise InvalidOption(f"setup={short(setup)} is not a function: give one that creates a client")


def _is_async(function: Callable[..., Any]) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _identity(setup: Callable[[], Any] | None) -> str:
    """A text that is the same for the same `setup` in every task of a job."""
    if setup is None:
        return ""
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    return hashlib.sha256(dumps(setup)).hexdigest()

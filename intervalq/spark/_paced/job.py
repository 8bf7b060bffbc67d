"""The configuration of a stage: checked on the driver, and pickled to the executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from intervalq import IntervalQueue
from intervalq._queue.options import Cost, Settle
from intervalq._spec.codec import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """See `paced`. Times are in seconds."""

    function: Callable[..., Any] = field(repr=False)
    blocks: bool
    """Whether the function is a plain one, which needs a thread."""
    setup: Callable[[], Any] | None = field(repr=False)
    setup_identity: str
    queue: IntervalQueue | None
    cost: Cost | Callable[[dict[str, Any]], Cost] = field(repr=False)
    settle: Settle[Any] | None = field(repr=False)
    columns: pa.Schema = field(repr=False)
    schema: str
    """A hash of the columns."""
    function_name: str
    version: str | None
    key: str | None
    takes: tuple[str, ...] | None
    """The columns that the function gets; None: all."""
    run: str
    has_ledger: bool
    ledger_url: str | None = field(repr=False)  # with its secrets
    codec: Codec | None = field(repr=False)
    large_answers: str | None
    """A folder; None: beside the ledger, if that is a file."""
    again: bool
    replay: bool
    canary: bool
    raises: bool
    stop_after: int | None
    concurrency: int
    window: int
    most_rows: int
    """How many rows the window may have while they end quickly."""
    retries: int
    backoff: float
    flush_rows: int
    flush_s: float
    drain: float
    log: str | None


Policy = Literal["retry", "fail"]
Errors = Literal["raise", "column"]

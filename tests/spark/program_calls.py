"""A driver whose rows call the stand-in for an API: an argument with common settings, then one for each step.

Both kinds of arguments are JSON. A step says how its rows are called and how the result is requested; the
result is printed as a line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any, Final

from intervalq import IntervalQueue
from intervalq.spark import CallContext, paced

USUAL: Final[dict[str, Any]] = {
    "rows": 60,  # the number of rows
    "first": 0,  # the number of the first one
    "tasks": 2,
    "interval": None,  # None: no limit
    "ledger": True,
    "on_unknown": "retry",
    "errors": "raise",
    "concurrency": 4,
    "window": 8,
    "ask": "collect",  # or "sort", "twice"
}


def caller(api: str, name: str) -> Any:
    """The function that is called for a row."""

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        headers = {"X-Process": f"{socket.gethostname()}:{os.getpid()}"}
        if ctx.row_key:
            headers["Idempotency-Key"] = ctx.key
        async with ctx.http.get(f"{api}/rows/{name}-{row['id']}", headers=headers) as answer:
            answer.raise_for_status()
            return {"answer": (await answer.json())["key"]}

    return call


def ask(session: Any, common: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Do a step, and return its result."""
    wish = {**USUAL, **step}
    interval = wish["interval"]
    name = wish["name"]
    queue = None if interval is None else IntervalQueue(name, interval=interval, store=common["store"])
    kept = {"key": "id", "run": name, "ledger": common["store"]} if wish["ledger"] else {"ledger": None}
    transform = paced(
        caller(common["api"], name),
        "answer string",
        queue=queue,
        on_unknown=wish["on_unknown"],
        errors=wish["errors"],
        concurrency=wish["concurrency"],
        window=wish["window"],
        **kept,
    )
    first = wish["first"]
    frame = session.range(first, first + wish["rows"], 1, wish["tasks"]).transform(transform)
    if wish["ask"] == "sort":
        frame = frame.orderBy("answer")
    if wish["ask"] == "twice":
        frame.collect()
    rows = frame.collect()
    return {
        "step": name,
        "rows": len(rows),
        "right": sum(row.answer == f"{name}-{row.id}" for row in rows),
        "errors": sum(row._iq.error is not None for row in rows),
        "hosts": len({row._iq.pid for row in rows if row._iq.pid is not None}),
    }


def main() -> None:
    from pyspark.sql import SparkSession

    common, *steps = map(json.loads, sys.argv[1:])
    session = SparkSession.builder.getOrCreate()
    for step in steps:
        print(json.dumps(ask(session, common, step)), flush=True)
    session.stop()


if __name__ == "__main__":
    main()

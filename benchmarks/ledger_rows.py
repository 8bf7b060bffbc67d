"""How many rows a second a stage of Spark does with a function that does nothing, without and with a ledger.

The stage runs in this process as in a Python worker, without Spark: `python benchmarks/ledger_rows.py URL...`,
with URLs of stores, `redis` and `postgres` (servers of their own are started), or `none`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

import pyarrow as pa  # noqa: E402 - needs the path
from pyspark.sql.types import LongType, StringType, StructField, StructType  # noqa: E402

import postgres_servers  # noqa: E402
import servers  # noqa: E402
from intervalq.spark._paced.partition import run_stage  # noqa: E402
from intervalq.spark._paced.validate import job_maker  # noqa: E402
from spark.stages import USUAL  # noqa: E402

SCHEMA = StructType([StructField("status", LongType()), StructField("body", StringType())])


async def nothing(_row: dict[str, Any], _ctx: object) -> dict[str, Any]:
    """A call that takes no time."""
    return {"status": 200, "body": "ok"}


def rows(count: int) -> Iterator[pa.RecordBatch]:
    """The input: keys and a text, in batches as Spark makes them."""
    for first in range(0, count, 10_000):
        ids = range(first, min(count, first + 10_000))
        yield pa.RecordBatch.from_pydict({"id": list(ids), "url": [f"/users/{one}" for one in ids]})


def measured(url: str | None, count: int) -> tuple[float, float]:
    """Rows a second, and rows a second of this process's CPU time."""
    run = uuid4().hex
    options = {
        **USUAL,
        "concurrency": 16,
        "window": None,
        "flush_s": 1.0,
        "key": "id",
        "run": run,
        "ledger": url,
    }
    job = job_maker(nothing, **options)(SCHEMA)
    began, used = time.perf_counter(), time.process_time()
    done = sum(batch.num_rows for batch in run_stage(job, rows(count)))
    assert done == count
    return count / (time.perf_counter() - began), count / (time.process_time() - used)


@contextmanager
def store(name: str) -> Iterator[str | None]:
    """The URL that a name stands for."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "none":
            yield None
        elif name == "redis":
            with servers.running(servers.redis_server(servers.redis_binary())) as server:
                yield server.url
        elif name == "postgres":
            with servers.running(postgres_servers.postgres()) as server:
                yield server.url
        elif name == "sqlite":
            yield f"sqlite://{folder}/state.db"
        else:
            yield name


def main() -> None:
    """Measure each store several times, and print the best and all the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    for name in given.stores:
        with store(name) as url:
            measured(url, 1_000)  # imports and connections
            found = [measured(url, given.rows) for _ in range(given.times)]
        figures = ", ".join(f"{wall:,.0f} ({cpu:,.0f})" for wall, cpu in found)
        print(f"{name:10}  best {max(found)[0]:>9,.0f} rows/s; each, with those a second of CPU: {figures}")


if __name__ == "__main__":
    main()

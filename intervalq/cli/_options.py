"""Options that several commands share, and commands that take another command after `--`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from intervalq import IntervalQueue
from intervalq._queue.options import Cost
from intervalq.errors import InvalidOption, short
from intervalq.rules import STARTS
from intervalq.store import open_store

F = TypeVar("F", bound=Callable[..., Any])

_NUMBER: Final = re.compile(r"[0-9](?:_?[0-9]){0,15}")

_STORE_URL: Final = (
    "a URL such as redis://host:6379/0, or the path of a SQLite file (.db) or a JSON file (any other path). "
    "To keep passwords out of `ps`, set INTERVALQ_STORE in the environment instead."
)
_STORE_DEFAULT: Final = "Default: a SQLite file in your state folder."
STORE_TEXT: Final = f"Where the queue is kept: {_STORE_URL}"


def store_option(function: F) -> F:
    """`--store`."""
    return click.option("--store", metavar="URL", help=f"{STORE_TEXT} {_STORE_DEFAULT}")(function)


def schedules_store_option(function: F) -> F:
    """`--store`, for schedules."""
    text = f"Where the schedules are kept: {_STORE_URL} {_STORE_DEFAULT}"
    return click.option("--store", metavar="URL", help=text)(function)


def json_option(function: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json_", is_flag=True, help="Print JSON.")(function)


def pace_options(function: F) -> F:
    """`--interval` and `--rate`."""
    function = click.option(
        "--rate", metavar="N/T", help="Rate, instead of an interval: 10/s, 5000/h, 100/15m."
    )(function)
    return click.option("--interval", metavar="D", help="Time between starts: 200ms, 1.5s, 2m, 1h.")(function)


def bounds_options(function: F) -> F:
    """`--floor` and `--ceiling`."""
    function = click.option(
        "--ceiling", metavar="N/T", help="With --rate auto: the highest rate, if nothing is refused."
    )(function)
    return click.option(
        "--floor", metavar="N/T", help="With --rate auto: the lowest rate, if everything is refused."
    )(function)


def limit_option(function: F) -> F:
    """`--limit`."""
    return click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="N/T",
        help="At most N starts in any window of length T, in addition to the interval: 500/min; or in fixed "
        "windows: '5000/day from utc'. Can be repeated.",
    )(function)


def cost_option(function: F) -> F:
    """`--cost`."""
    return click.option(
        "--cost",
        "costs",
        multiple=True,
        metavar="N|UNIT=N",
        help="What a job takes: a number of slots, or of a limit's units: tokens=1200. Can be repeated.",
    )(function)


def cost_of(costs: Iterable[str]) -> Cost:
    """What a job takes, by the values of `--cost`; without any, one slot.

    Raises:
        InvalidOption: one of them is not a cost, or repeats a unit.
    """
    taken: dict[str, int] = {}
    for text in costs:
        unit, equals, number = text.rpartition("=")
        if not _NUMBER.fullmatch(number) or bool(unit) != bool(equals):
            raise InvalidOption(f"--cost {short(text)} must be a whole number, or UNIT=N such as tokens=1200")
        unit = unit or STARTS
        if unit in taken:
            raise InvalidOption(f"--cost gives the {'slots' if unit == STARTS else unit} of a job twice")
        taken[unit] = int(number)
    return taken.get(STARTS, 1) if taken.keys() <= {STARTS} else taken


def examples(*commands: str) -> str:
    """The end of a help text: examples of commands, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


class BeforeCommand(click.Command):
    """Takes everything after the first `--` as the words of another command, options and all."""

    command_shown = "-- COMMAND ..."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        command: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], args[at + 1 :]
            if not command and not ctx.resilient_parsing:
                raise click.UsageError("give a command after --", ctx)
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            is_no_file = type(error) is click.BadParameter and isinstance(error.param, click.Argument)
            if not command and (is_no_file or "unexpected extra argument" in error.message):
                message = f"{error.format_message().rstrip('.')}; a command needs -- in front of it"
                raise click.UsageError(message, ctx) from None
            raise
        ctx.params["command"] = tuple(command)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """See `click.Command`."""
        return [*super().collect_usage_pieces(ctx), self.command_shown]


def shared_store(url: str | None) -> None:
    """Refuse a store that other processes can't see.

    Raises:
        InvalidOption: it is in memory, which each process has for itself.
        UnknownStore, MissingExtra: as for `open_store`.
    """
    store = open_store(url)
    if store.url.startswith("memory:"):
        raise InvalidOption(
            "a store in memory can't pace several processes: use a file (--store ./state.db), redis:// or "
            "postgresql://"
        )


def queue_of(name: str, store: str | None) -> IntervalQueue:
    """The handle of a queue that exists, by its name or `name:key`."""
    name, colon, key = name.partition(":")
    queue = IntervalQueue(name, store=store)
    return queue[key] if colon else queue

"""`intervalq ledger`: the group of commands on ledgers, and all of them but `export`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import anyio
import click

from intervalq._observe.actions import acting
from intervalq._show import as_json, bare_table, cell, escaped, print_table
from intervalq._watch.task import many, moment
from intervalq.cli._app import Commands, Failed
from intervalq.cli._options import examples, json_option
from intervalq.errors import InvalidOption, LedgerNotFound
from intervalq.ledger import Ledger, LedgerInfo, ledgers
from intervalq.ledger.rules import Shown
from intervalq.ledger.store import LedgerStore, open_ledger_store

if TYPE_CHECKING:
    from rich.table import Table

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_STORE_HELP: Final = (
    "Where the ledgers are kept, which is the store of their queues: a URL such as redis://host:6379/0, or "
    "the path of a SQLite file (.db) or a JSON file (any other path). To keep passwords out of `ps`, set "
    "INTERVALQ_STORE in the environment instead. Default: a SQLite file in your state folder."
)
_LARGE_HELP: Final = (
    "The folder that the run was given as large_answers=, from which those of removed rows are removed, too. "
    "Default: the one beside a ledger in a file."
)
_STATES: Final[dict[Shown, str]] = {
    "done": "Rows whose call returned a result.",
    "failed": "Rows whose call failed.",
    "unknown": "Rows that may have been called by a process that died.",
    "free": "Rows that a process had claimed, but not called, when it died.",
    "claimed": "Rows that a live process holds, but has not called.",
    "started": "Rows that a live process may be calling.",
}


class LedgerCommands(Commands):
    """See `intervalq ledger --help`."""

    known: ClassVar[dict[str, str]] = {
        "list": "_ledger.command:list_",
        "show": "_ledger.command:show",
        "export": "_ledger.export:export",
        "forget": "_ledger.command:forget",
        "cancel": "_ledger.command:cancel",
        "uncancel": "_ledger.command:uncancel",
        "expire": "_ledger.command:expire",
        "drop": "_ledger.command:drop",
    }


@click.group(
    cls=LedgerCommands,
    epilog=examples(
        "intervalq ledger list",
        "intervalq ledger show filings-2026",
        "intervalq ledger forget filings-2026 --failed",
    ),
)
def ledger() -> None:
    """Show and change the ledgers of runs over many rows."""


def ledger_store_option(function: F) -> F:
    """`--store` of the commands on ledgers."""
    return click.option("--store", metavar="URL", help=_STORE_HELP)(function)


def state_options(*states: Shown) -> Callable[[F], F]:
    """A flag for each state of rows; `states_of` returns which were given."""

    def add(function: F) -> F:
        for state in reversed(states):
            function = click.option(f"--{state}", is_flag=True, help=_STATES[state])(function)
        return function

    return add


def states_of(given: dict[str, Any]) -> tuple[Shown, ...] | None:
    """The states whose flags were given; None: no flag was."""
    return tuple(state for state in _STATES if given.get(state)) or None


def on_store(store: str | None, action: Callable[[LedgerStore], Awaitable[R]]) -> R:
    """Run an action on a store that other processes can see, too, and close it.

    Raises:
        InvalidOption: it is in memory, which ends with this process.
        UnknownStore, MissingExtra, StoreError: as for `open_ledger_store`.
    """
    opened = open_ledger_store(store)
    if opened.url.startswith("memory:"):
        raise InvalidOption(
            "ledgers in memory are gone when this command ends: use a file (--store ./state.db), redis:// or "
            "postgresql://"
        )

    async def do() -> R:
        try:
            return await action(opened)
        finally:
            with anyio.CancelScope(shield=True):
                await opened.aclose()

    return anyio.run(do)


def on_ledger(
    name: str, store: str | None, action: Callable[[Ledger], Awaitable[R]], large_answers: str | None = None
) -> R:
    """Run an action on one ledger; see `on_store`."""
    return on_store(store, lambda opened: action(Ledger(name, opened, large_answers=large_answers)))


def _change(
    verb: str,
    name: str,
    store: str | None,
    action: Callable[[Ledger], Awaitable[R]],
    large_answers: str | None = None,
) -> R:
    """Run an action that changes a ledger; see `on_store`."""
    with acting(verb, f"ledger {name}", open_ledger_store(store).url):
        return on_ledger(name, store, action, large_answers)


def large_answers_option(function: F) -> F:
    """`--large-answers` of the commands that remove rows."""
    return click.option("--large-answers", metavar="FOLDER", help=_LARGE_HELP)(function)


@click.command("list", epilog=examples("intervalq ledger list", "intervalq ledger list --json"))
@ledger_store_option
@json_option
def list_(store: str | None, *, as_json_: bool) -> None:
    """List all ledgers, with their numbers of rows.

    With --json, each ledger is one line, and times are seconds since 1970 on the store's clock.
    """
    found = on_store(store, _all)
    if as_json_:
        for info in found:
            click.echo(as_json(info._asdict()))
    elif found:
        print_table(_table(found))
    else:
        click.echo(f"no ledgers in {escaped(open_ledger_store(store).url)}")


async def _all(store: LedgerStore) -> list[LedgerInfo]:
    found: list[LedgerInfo] = []
    for name in await ledgers(store):
        try:
            found.append(await Ledger(name, store).info())
        except LedgerNotFound:
            continue  # dropped in the meantime
    return found


def _table(found: list[LedgerInfo]) -> Table:
    made = bare_table()
    for column in ("ledger", "done", "failed", "in flight", "unknown", "processes", "state", "expires"):
        text = column in {"ledger", "state", "expires"}
        made.add_column(column, justify="left" if text else "right", no_wrap=True)
    for info in found:
        numbers = info.done, info.failed, info.claimed + info.started, info.unknown, info.sessions
        made.add_row(
            cell(info.name),
            *map(str, numbers),
            _state(info),
            "never" if info.expires is None else moment(info.expires),
        )
    return made


def _state(info: LedgerInfo) -> str:
    return "cancelled" if info.cancelled else "in use" if info.sessions else "idle"


@click.command(
    epilog=examples("intervalq ledger show filings-2026", "intervalq ledger show filings-2026 --json")
)
@click.argument("name")
@ledger_store_option
@json_option
def show(name: str, store: str | None, *, as_json_: bool) -> None:
    """Show how many rows of a ledger are in which state."""
    info = on_ledger(name, store, Ledger.info)
    if as_json_:
        click.echo(as_json(info._asdict()))
        return
    facts = [
        ("ledger", escaped(info.name)),
        ("state", _state(info)),
        ("made", moment(info.created)),
        ("expires", "never" if info.expires is None else moment(info.expires)),
        ("done", str(info.done)),
        ("failed", str(info.failed)),
        ("in flight", f"{info.claimed + info.started} ({info.started} called)"),
        ("unknown", f"{info.unknown} (may have been called by processes that died)" if info.unknown else "0"),
        ("processes", str(info.sessions)),
    ]
    for what, value in facts:
        click.echo(f"{what:>10}  {value}")


@click.command(
    epilog=examples(
        "intervalq ledger forget filings-2026 --failed",
        "intervalq ledger forget filings-2026 0001-26 0002-26",
    )
)
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@state_options("done", "failed", "unknown", "free")
@large_answers_option
@ledger_store_option
@json_option
def forget(
    name: str,
    keys: tuple[str, ...],
    store: str | None,
    *,
    large_answers: str | None,
    as_json_: bool,
    **states: bool,
) -> None:
    """Remove rows from a ledger, so that they are called again.

    Give keys, states, or both: with both, only the given rows that are in one of the given states are
    removed. Rows that a live process holds stay.
    """
    shown = states_of(states)
    if not keys and shown is None:
        raise InvalidOption("give the rows: their keys, or --failed, --unknown, --done or --free")
    removed = _change("forget", name, store, lambda one: one.forget(keys or None, shown), large_answers)
    click.echo(
        as_json({"name": name, "removed": removed}) if as_json_ else f"{name}: {many(removed, 'row')} removed"
    )


@click.command(epilog=examples("intervalq ledger cancel filings-2026"))
@click.argument("name")
@ledger_store_option
@json_option
def cancel(name: str, store: str | None, *, as_json_: bool) -> None:
    """Stop a run: none of its remaining rows is started.

    Calls in flight end, and their results are kept. `uncancel` lets the run go on.
    """
    _change("cancel", name, store, Ledger.cancel)
    click.echo(as_json({"name": name, "cancelled": True}) if as_json_ else f"{name}: cancelled")


@click.command(epilog=examples("intervalq ledger uncancel filings-2026"))
@click.argument("name")
@ledger_store_option
@json_option
def uncancel(name: str, store: str | None, *, as_json_: bool) -> None:
    """Let a cancelled run go on."""
    _change("uncancel", name, store, Ledger.uncancel)
    click.echo(as_json({"name": name, "cancelled": False}) if as_json_ else f"{name}: may go on")


@click.command(
    epilog=examples("intervalq ledger expire filings-2026 30d", "intervalq ledger expire filings-2026 never")
)
@click.argument("name")
@click.argument("after")
@ledger_store_option
@json_option
def expire(name: str, after: str, store: str | None, *, as_json_: bool) -> None:
    """Set when a ledger is removed.

    AFTER is a time from now, such as 12h or 30d, or never.
    """

    async def do(one: Ledger) -> LedgerInfo:
        await one.expire(None if after == "never" else after)
        return await one.info()

    info = _change("expire", name, store, do)
    if as_json_:
        click.echo(as_json({"name": name, "expires": info.expires}))
    else:
        click.echo(
            f"{name}: {'kept' if info.expires is None else f'expires at {moment(info.expires)} (UTC)'}"
        )


@click.command(epilog=examples("intervalq ledger drop filings-2026 --yes"))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask. Required without a terminal.")
@large_answers_option
@ledger_store_option
@json_option
def drop(name: str, store: str | None, *, yes: bool, large_answers: str | None, as_json_: bool) -> None:
    """Remove a ledger with all its results.

    A run of this name calls all its rows again.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidOption(f"give --yes to drop {name!r} without a terminal")
        info = on_ledger(name, store, Ledger.info)
        what = f"Drop the ledger {name!r} with {many(info.done, 'result')}"
        if info.sessions:
            what += f", in use by {info.sessions} process{'es' if info.sessions > 1 else ''}"
        if not click.confirm(f"{what}?", err=True):
            raise Failed("nothing was dropped")

    async def dropped(one: Ledger) -> None:
        if not await one.drop():
            raise LedgerNotFound(name)

    _change("drop", name, store, dropped, large_answers)
    click.echo(as_json({"name": name, "dropped": True}) if as_json_ else f"{name}: dropped")

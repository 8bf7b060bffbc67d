"""`intervalq tasks`: the group of commands on durable tasks, and those that only show something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Final, TypeVar

import anyio
import click

from intervalq._show import as_json, escaped, print_table
from intervalq._watch.task import facts, history
from intervalq.cli._app import Commands, Failed
from intervalq.cli._options import examples, json_option
from intervalq.cli._tasks.ended import outcome_facts, outcome_fields, outcome_table
from intervalq.cli._tasks.show import (
    dead_table,
    fields,
    queue_table,
    session_table,
    task_table,
)
from intervalq.errors import InvalidOption, UnsupportedOperation, short
from intervalq.tasks import Outcome, Task, Tasks, WorkerSession
from intervalq.tasks._handle.outcome import failed_attempts
from intervalq.tasks._spec.outcome import CANCELLED, DONE, FAILED, dead_queue
from intervalq.tasks.store import open_task_store

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

_STORE_HELP: Final = (
    "Where the tasks are kept: a URL with postgresql://, redis:// or nats://, or the path of a SQLite "
    "database. To keep passwords out of `ps`, set INTERVALQ_STORE in the environment instead. Default: a "
    "SQLite file in your state folder."
)


class TaskCommands(Commands):
    """See `intervalq tasks --help`."""

    known: ClassVar[dict[str, str]] = {
        "insert": "_tasks.insert:insert",
        "list": "_tasks.command:list_",
        "queues": "_tasks.command:queues",
        "show": "_tasks.command:show",
        "dead": "_tasks.command:dead",
        "retry": "_tasks.change:retry",
        "move": "_tasks.change:move",
        "delete": "_tasks.change:delete",
        "cancel": "_tasks.cancel:cancel",
        "claim": "_tasks.shell:claim",
        "ack": "_tasks.shell:ack",
        "nak": "_tasks.shell:nak",
        "modify": "_tasks.shell:modify",
        "lock": "_tasks.lock:lock",
        "sessions": "_tasks.command:sessions",
        "top": "_tasks.top:top",
    }


@click.group(
    cls=TaskCommands,
    epilog=examples(
        """intervalq tasks insert mails '{"to": "ann"}'""",
        "intervalq tasks list mails",
        "intervalq tasks queues",
    ),
)
def tasks() -> None:
    """Insert, show, claim, change, cancel and delete durable tasks."""


def tasks_store_option(function: F) -> F:
    """`--store` of the commands on tasks."""
    return click.option("--store", metavar="URL", help=_STORE_HELP)(function)


def limit_option(function: F) -> F:
    """`--limit`."""
    return click.option(
        "--limit",
        type=click.IntRange(1, 1_000_000_000),
        default=100,
        show_default=True,
        metavar="N",
        help="Show at most N tasks.",
    )(function)


def on_tasks(store: str | None, action: Callable[[Tasks], Awaitable[R]]) -> R:
    """Run an action on the tasks of a store that other processes can see, too, and close it.

    Raises:
        InvalidOption: it is in memory, which ends with this process.
        UnknownStore, MissingExtra, StoreError: as for `open_task_store`.
    """
    if open_task_store(store).url.startswith("memory:"):
        raise InvalidOption(
            "tasks in memory are gone when this command ends: use a file (--store ./app.db) or postgresql://"
        )

    async def do() -> R:
        async with Tasks(store) as handle:
            return await action(handle)

    return anyio.run(do)


def none_found(what: str, store: str | None) -> str:
    """The message instead of an empty table; it names the store, which may be the wrong one."""
    return f"no {what} in {escaped(open_task_store(store).url)}"


@click.command("list", epilog=examples("intervalq tasks list mails", "intervalq tasks list --limit 5 --json"))
@click.argument("queue", required=False)
@click.option("--done", is_flag=True, help="List the outcomes of kept tasks that are done, the last first.")
@click.option("--failed", is_flag=True, help="List the outcomes of kept tasks that failed.")
@click.option("--cancelled", is_flag=True, help="List the outcomes of kept tasks that were cancelled.")
@limit_option
@tasks_store_option
@json_option
def list_(
    queue: str | None,
    limit: int,
    store: str | None,
    *,
    done: bool,
    failed: bool,
    cancelled: bool,
    as_json_: bool,
) -> None:
    """List the tasks of a queue, or of all queues.

    Tasks are sorted by time. With --json, each task is one line, and times are seconds since 1970 on the
    store's clock. Tasks that have ended are only known if they were inserted with --keep, or their worker
    keeps them.
    """
    states = [state for state, given in ((DONE, done), (FAILED, failed), (CANCELLED, cancelled)) if given]
    if states:
        _list_ended(queue, states, limit, store, as_json_=as_json_)
        return
    found = on_tasks(store, lambda handle: handle.tasks(queue, limit=limit))
    if as_json_:
        _print_fields(found)
    elif found:
        print_table(task_table(found))
    else:
        click.echo(none_found("tasks" + (f" of queue {short(queue)}" if queue else ""), store))


def _list_ended(
    queue: str | None, states: list[str], limit: int, store: str | None, *, as_json_: bool
) -> None:
    found = on_tasks(store, lambda handle: _ended(handle, queue, states, limit))
    if as_json_:
        for outcome in found:
            click.echo(as_json(outcome_fields(outcome)))
    elif found:
        print_table(outcome_table(found))
    else:
        what = f"{' or '.join(states)} tasks"
        click.echo(none_found(what + (f" of queue {short(queue)}" if queue else ""), store))


async def _ended(handle: Tasks, queue: str | None, states: list[str], limit: int) -> list[Outcome]:
    """The latest outcomes with one of these states, the last first."""
    found = [one for state in states for one in await handle.outcomes(queue, state=state, limit=limit)]
    if len(states) > 1:
        found.sort(key=lambda one: one.ended, reverse=True)
    return found[:limit]


@click.command(epilog=examples("intervalq tasks queues", "intervalq tasks queues --prefix mail --json"))
@click.option("--prefix", default="", metavar="TEXT", help="Only queues whose names begin with TEXT.")
@tasks_store_option
@json_option
def queues(prefix: str, store: str | None, *, as_json_: bool) -> None:
    """Show the queues that have tasks, and how many.

    Postgres and SQLite estimate numbers above 10,000. Estimates are marked with `~`; with --json, "exact" is
    false.
    """
    found = on_tasks(store, lambda handle: handle.queues(prefix=prefix))
    if as_json_:
        for queue in found:
            click.echo(as_json(queue._asdict()))
    elif found:
        print_table(queue_table(found))
    else:
        click.echo(none_found(f"queues that begin with {short(prefix)}" if prefix else "queues", store))


@click.command(epilog=examples("intervalq tasks show 1001", "intervalq tasks show 1001 --json"))
@click.argument("id_", metavar="ID")
@tasks_store_option
@json_option
def show(id_: str, store: str | None, *, as_json_: bool) -> None:
    """Show one task: its state, attempts, progress, errors and value.

    For a kept task that has ended, its outcome is shown.
    """
    found = on_tasks(store, lambda handle: _found(handle, id_))
    if as_json_:
        click.echo(as_json(outcome_fields(found) if isinstance(found, Outcome) else fields(found[0])))
        return
    if isinstance(found, Outcome):
        rows = outcome_facts(found)
    else:
        rows = [*facts(*found), *history(failed_attempts(found[0]._row.errors))]
    for what, value in rows:
        click.echo(f"{what:>12}  {value}".rstrip())


async def _found(handle: Tasks, id_: str) -> Outcome | tuple[Task, dict[str, WorkerSession]]:
    """The task and all sessions; if it has ended, its last outcome."""
    found = await handle.tasks(ids=[id_])
    if found:
        return found[0], {session.id: session for session in await handle.sessions()}
    with suppress(UnsupportedOperation):
        for outcome in await handle.outcomes(ids=[id_]):
            return outcome
    raise Failed(
        f"there is no task {short(id_)} in {escaped(handle._here().url)}, nor its outcome: it ended and was "
        "not kept, or is in another store"
    )


@click.command(epilog=examples("intervalq tasks dead", "intervalq tasks dead mails --json"))
@click.argument("queue", required=False)
@limit_option
@tasks_store_option
@json_option
def dead(queue: str | None, limit: int, store: str | None, *, as_json_: bool) -> None:
    """List dead-letter tasks, and why they failed.

    The dead-letter tasks of QUEUE are in the queue QUEUE.dead. Without QUEUE, those of all queues are listed.
    """
    found = on_tasks(store, lambda handle: _dead(handle, queue, limit))
    if as_json_:
        _print_fields(found)
    elif found:
        print_table(dead_table(found))
    else:
        click.echo(none_found("dead-letter tasks" + (f" of queue {short(queue)}" if queue else ""), store))


async def _dead(handle: Tasks, queue: str | None, limit: int) -> list[Task]:
    if queue is not None:
        return await handle.tasks(dead_queue(queue), limit=limit)
    found: list[Task] = []
    for other in await handle.queues():
        if dead_queue(other.name) == other.name and len(found) < limit:
            found += await handle.tasks(other.name, limit=limit - len(found))
    return found


@click.command(epilog=examples("intervalq tasks sessions", "intervalq tasks sessions --json"))
@tasks_store_option
@json_option
def sessions(store: str | None, *, as_json_: bool) -> None:
    """Show the worker processes, and the shells that hold claims."""
    found = on_tasks(store, Tasks.sessions)
    if as_json_:
        for session in found:
            click.echo(as_json(session._asdict()))
    elif found:
        print_table(session_table(found))
    else:
        click.echo(none_found("sessions", store))


def _print_fields(found: list[Task]) -> None:
    for task in found:
        click.echo(as_json(fields(task)))

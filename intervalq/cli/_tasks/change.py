"""`intervalq tasks retry | move | delete`: manual changes to existing tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from intervalq._observe.actions import acting
from intervalq._show import as_json, escaped, warn
from intervalq._watch.edit import Make, deleted, moved, retried
from intervalq._watch.task import many, named
from intervalq.cli._app import Failed
from intervalq.cli._options import examples, json_option
from intervalq.cli._tasks.bulk import BulkEdit
from intervalq.cli._tasks.command import on_tasks, tasks_store_option
from intervalq.errors import InvalidOption
from intervalq.tasks import Tasks
from intervalq.tasks._claim.values import queue_name
from intervalq.tasks._spec.outcome import dead_queue

F = TypeVar("F", bound=Callable[..., Any])

_MAX_SHOWN = 10
"""The maximum number of unchanged tasks for which to print the reason."""


def _chosen(function: F) -> F:
    """The options that select tasks: their ids, or all of a queue."""
    for add in (
        json_option,
        tasks_store_option,
        click.option(
            "--force",
            is_flag=True,
            help="Do it even if a worker has claimed the task, or somebody changed it in the meantime.",
        ),
        click.option("--all", "all_", is_flag=True, help="All tasks of --queue."),
        click.option("--queue", metavar="QUEUE", help="With --all: the queue of the tasks."),
        click.argument("ids", nargs=-1, metavar="[ID]..."),
    ):
        function = add(function)
    return function


@click.command(
    epilog=examples("intervalq tasks retry 1003", "intervalq tasks retry --queue mails.dead --all")
)
@_chosen
@click.pass_context
def retry(ctx: click.Context, /, **given: Any) -> None:
    """Put dead-letter tasks back into the queue they came from.

    They are ready at once, and their attempts are counted from 0. The exit code is 1 if some were not put
    back.
    """
    queue = given["queue"]
    if queue is not None and dead_queue(queue) != queue:
        raise InvalidOption(f"--queue {queue!r} is not a dead-letter queue: give {dead_queue(queue)}")
    ctx.exit(_do("retry", retried, ("put back", "put back"), **given))


@click.command(
    epilog=examples(
        "intervalq tasks move 1001 1002 --to later", "intervalq tasks move --queue mails --all --to later"
    )
)
@_chosen
@click.option("--to", required=True, metavar="QUEUE", help="Queue to move the tasks to.")
@click.pass_context
def move(ctx: click.Context, /, to: str, **given: Any) -> None:
    """Move tasks to another queue.

    They keep their values and times. Attempts of tasks from a dead-letter queue are counted from 0. The exit
    code is 1 if some were not moved.
    """
    queue_name(to)
    if given["queue"] == to:
        raise InvalidOption(f"--to {to} is the queue that the tasks are in: give another one")
    ctx.exit(_do("move", moved(to), ("moved", f"moved to {to}"), **given))


@click.command(
    epilog=examples("intervalq tasks delete 1001", "intervalq tasks delete --queue mails.dead --all --yes")
)
@_chosen
@click.option("--yes", is_flag=True, help="Do not ask. Required with --all without a terminal.")
@click.pass_context
def delete(ctx: click.Context, /, *, yes: bool, **given: Any) -> None:
    """Delete tasks for good.

    The exit code is 1 if some were not deleted.
    """
    _check_choice(given["ids"], given["queue"], all_=given["all_"])
    if not yes:
        if sys.stdin.isatty():
            which = f"all tasks of {given['queue']}" if given["all_"] else many(len(set(given["ids"])))
            if not click.confirm(escaped(f"Delete {which} for good?"), err=True):
                raise Failed("nothing was deleted")
        elif given["all_"]:
            raise InvalidOption("give --yes to delete all tasks of a queue without a terminal")
    ctx.exit(_do("delete", deleted, ("deleted", "deleted"), **given))


def _do(
    verb: str,
    make: Make,
    words: tuple[str, str],
    *,
    ids: tuple[str, ...],
    queue: str | None,
    all_: bool,
    force: bool,
    store: str | None,
    as_json_: bool,
) -> int:
    """Change each of the selected tasks, report the outcome, and return the exit code.

    Args:
        verb: names the change in the list of actions.
        make: gives the change of a task, or the reason why it can't be made.
        words: names of the change, for messages.
        ids, queue, all_, force, store, as_json_: the options.
    """
    _check_choice(ids, queue, all_=all_)
    if force:
        warn(
            "--force: a worker that has claimed a task continues until it learns of the change, up to a "
            "second later, and then can't commit; its work is repeated or lost"
        )

    async def do(handle: Tasks) -> BulkEdit:
        edit = BulkEdit(handle, make, words[0], force=force)
        which = f"tasks of {queue}" if queue is not None else named(ids)
        to = words[1].removeprefix(words[0])  # of a move, its target
        with acting(verb, f"{which}{to}", handle._here().url) as acts:
            try:
                await edit.all_of(queue) if queue is not None else await edit.these(ids)
            finally:
                acts.result = edit.result + (f"; {edit.error}" if edit.error else "")
        return edit

    edit = on_tasks(store, do)
    if as_json_:
        refused = [{"id": id_, "why": why} for id_, why in edit.refused.items()]
        click.echo(as_json({"done": edit.done, "refused": refused}))
    else:
        click.echo(f"{many(edit.done)} {words[1]}")
        for id_, why in list(edit.refused.items())[:_MAX_SHOWN]:
            warn(f"task {id_} was not {words[0]}: it {why}")
        if (more := len(edit.refused) - _MAX_SHOWN) > 0:
            warn(f"{more} more were not {words[0]}")
    return _end(edit, words[0])


def _end(edit: BulkEdit, word: str) -> int:
    unsure = f"; {edit.unsure} more may be {word}" if edit.unsure else ""
    if edit.error is not None:
        warn(f"{edit.error}{unsure}")
        return 1
    if edit.by is not None:
        warn(f"interrupted: the other tasks are unchanged{unsure}")
        return 128 + edit.by
    return 1 if edit.refused else 0


def _check_choice(ids: tuple[str, ...], queue: str | None, *, all_: bool) -> None:
    if ids and (queue is not None or all_):
        raise InvalidOption("give either ids or --queue QUEUE --all, not both")
    if not ids and not (queue is not None and all_):
        raise InvalidOption("select the tasks: give ids, or --queue QUEUE --all")
    if queue is not None:
        queue_name(queue)

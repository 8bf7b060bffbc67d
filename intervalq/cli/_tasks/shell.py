"""`intervalq tasks claim | ack | nak | modify`: tasks that a shell claims, settles and changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import click

from intervalq._observe.actions import acting
from intervalq._show import as_json, escaped
from intervalq._spec import parse
from intervalq.cli._app import Failed
from intervalq.cli._options import examples
from intervalq.cli._tasks import shell_claims
from intervalq.cli._tasks.command import on_tasks, tasks_store_option
from intervalq.cli._tasks.show import fields
from intervalq.errors import DependencyError, InvalidOption, InvalidTask, short
from intervalq.tasks import Task, Tasks
from intervalq.tasks._claim import progress as _progress
from intervalq.tasks._claim import values as _values
from intervalq.tasks._claim.endings import dead
from intervalq.tasks._worker.workers import names_of
from intervalq.tasks.rules import Change, Delete, Kept, Modify, Row

_LEASE: Final = "5m"


def _lease(text: str) -> int:
    return parse.duration(text, least=1_000_000, what="for")


@click.command(
    epilog=examples(
        "claim=$(intervalq tasks claim mails --for 10m | jq -r .claim)",
        "intervalq tasks claim mails spam --wait 1m",
    )
)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option(
    "--for", "lease", default=_LEASE, show_default=True, metavar="D", help="Hold the claim for this time."
)
@click.option("--wait", default="0s", show_default=True, metavar="D", help="Wait for a task for this time.")
@tasks_store_option
def claim(queues: tuple[str, ...], lease: str, wait: str, store: str | None) -> None:
    """Claim a task, and print it as JSON.

    The claim outlives this command. Give its "claim" to `ack`, `nak` or `modify --claim`. If none of these
    is run in time, the task is free again, and the attempt has failed. The exit code is 1 if no task is
    ready.
    """
    micros, seconds = _lease(lease), parse.duration(wait, what="wait") / 1e6
    names = names_of(queues)
    row = on_tasks(store, lambda handle: shell_claims.claim(handle, names, micros, seconds))
    if row is None:
        raise Failed(f"no task of {', '.join(names)} is ready")
    click.echo(as_json(shell_claims.shown(row)))


@click.command(epilog=examples("""intervalq tasks ack "$claim" --result '{"pages": 4}'"""))
@click.argument("claim_", metavar="CLAIM")
@click.option("--result", metavar="JSON", help="The result of the task, for its outcome if it is kept.")
@tasks_store_option
def ack(claim_: str, result: str | None, store: str | None) -> None:
    """Acknowledge a claimed task: it is done.

    The exit code is 1 if the claim is lost.
    """
    mine = shell_claims.parsed(claim_)
    text = _encoded("--result", result)
    end = Delete(mine.id, mine.version, None if text is None else Kept(0, text))  # as long as the task says
    on_tasks(store, lambda handle: shell_claims.settle(handle, mine, end))
    click.echo(f"task {mine.id} is done")


@click.command(epilog=examples('intervalq tasks nak "$claim" --delay 1m --error "no answer"'))
@click.argument("claim_", metavar="CLAIM")
@click.option("--delay", default="0s", show_default=True, metavar="D", help="Pause before the next attempt.")
@click.option("--error", default="", metavar="TEXT", help="Why the attempt failed.")
@click.option("--dead", "is_dead", is_flag=True, help="Send it to the dead-letter queue.")
@tasks_store_option
def nak(claim_: str, delay: str, error: str, *, is_dead: bool, store: str | None) -> None:
    """Report that an attempt has failed: the task is tried again.

    The exit code is 1 if the claim is lost.
    """
    mine, micros = shell_claims.parsed(claim_), parse.duration(delay, what="delay")

    async def do(handle: Tasks) -> None:
        part = Change(mine.id, mine.version, delay=micros, error=_values.error_text(error) if error else None)
        if is_dead:
            found = await handle.tasks(ids=[mine.id])
            for task in found:
                part = replace(dead(task._row, error or "terminated", task.attempt), version=mine.version)
        await shell_claims.settle(handle, mine, part)

    on_tasks(store, do)
    click.echo(f"task {mine.id} is dead" if is_dead else f"task {mine.id} is tried again")


@click.command(
    epilog=examples(
        """intervalq tasks modify 1001 --value '{"to": "bob"}' --delay 1h""",
        'claim=$(intervalq tasks modify --claim "$claim" --for 10m --progress 0.4 | jq -r .claim)',
    )
)
@click.argument("id_", required=False, metavar="[ID]")
@click.option(
    "--claim", "claim_", metavar="CLAIM", help="Instead of ID: a claimed task, which stays claimed."
)
@click.option("--value", metavar="JSON", help="The new value.")
@click.option("--to", "queue", metavar="QUEUE", help="With ID: move it to this queue.")
@click.option("--delay", metavar="D", help="With ID: not before this time from now.")
@click.option(
    "--priority", type=int, metavar="-9..9", help="With ID: tasks of a higher priority are claimed first."
)
@click.option("--reset", is_flag=True, help="With ID: count its attempts from 0, and clear its error.")
@click.option("--force", is_flag=True, help="With ID: do it even if a worker has claimed the task.")
@click.option("--for", "lease", metavar="D", help=f"With --claim: hold it for this time. [default: {_LEASE}]")
@click.option(
    "--progress", type=float, metavar="0..1", help="With --claim: the fraction of the work that is done."
)
@click.option("--note", metavar="TEXT", help="With --claim: a note about the work.")
@click.option("--checkpoint", metavar="JSON", help="With --claim: what the next attempt finds.")
@tasks_store_option
def modify(id_: str | None, claim_: str | None, store: str | None, **given: Any) -> None:
    """Change a task, and print it as JSON.

    A claimed task is changed by its holder with --claim, which renews the claim: the JSON has the next
    "claim". The exit code is 1 if the task can't be changed.
    """
    if (id_ is None) == (claim_ is None):
        raise InvalidOption("give the ID of a task, or --claim CLAIM")
    reports = ("lease", "progress", "note", "checkpoint")
    names = ("queue", "delay", "priority", "reset", "force") if id_ is None else reports
    wrong = [name for name in names if given[name] is not None and given[name] is not False]
    if wrong:
        option = {"queue": "--to", "lease": "--for"}.get(wrong[0], f"--{wrong[0]}")
        raise InvalidOption(f"{option} can't be given with {'--claim' if id_ is None else 'ID'}")
    text = _encoded("--value", given["value"])
    if claim_ is not None:
        mine = shell_claims.parsed(claim_)
        row = on_tasks(store, lambda handle: _held_changed(handle, mine, text, given))
        click.echo(as_json(shell_claims.shown(row)))
    elif id_ is not None:
        row = on_tasks(store, lambda handle: _changed(handle, id_, text, given))
        click.echo(as_json(fields(Task(row))))


def _encoded(option: str, text: str | None) -> str | None:
    return None if text is None else _values.encode(_parsed(option, text))


def _parsed(option: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTask(f"{option} {short(text)} is not JSON ({error})") from None


async def _held_changed(
    handle: Tasks, mine: shell_claims.ShellClaim, text: str | None, given: dict[str, Any]
) -> Row:
    checkpoint = ... if given["checkpoint"] is None else _parsed("--checkpoint", given["checkpoint"])
    report = _progress.report(given["progress"], given["note"], checkpoint, _values.USUAL)
    said = None
    if report is not None:
        said = next((report(task._row.progress) for task in await handle.tasks(ids=[mine.id])), None)
    lease = _lease(given["lease"] or _LEASE)
    part = Change(mine.id, mine.version, json=text, keep=True, lease=lease, progress=said)
    return await shell_claims.renew(handle, mine, part)


async def _changed(handle: Tasks, id_: str, text: str | None, given: dict[str, Any]) -> Row:
    found = await handle.tasks(ids=[id_])
    if not found:
        raise Failed(
            f"there is no task {short(id_)} in {escaped(handle._here().url)}: it is done, was deleted, or is "
            "in another store"
        )
    part = found[0].change(
        queue=given["queue"],
        delay=given["delay"],
        attempt=0 if given["reset"] else None,
        error="" if given["reset"] else None,
        priority=given["priority"],
    )
    try:
        with acting("change", f"task {id_}", handle._here().url):
            done = await handle._apply(Modify(changes=(replace(part, json=text),), force=given["force"]))
    except DependencyError as error:
        if not error.claims:
            raise
        raise Failed(
            f"task {short(id_)} is claimed by a worker: wait until that ends, or give --force"
        ) from error
    return done.changed[0]

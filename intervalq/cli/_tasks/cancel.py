"""`intervalq tasks cancel`."""

from __future__ import annotations

import click

from intervalq._observe.actions import acting
from intervalq._show import as_json, warn
from intervalq._watch.task import many, named
from intervalq.cli._options import examples, json_option
from intervalq.cli._tasks.command import on_tasks, tasks_store_option
from intervalq.tasks import Cancelled, Tasks
from intervalq.tasks.store import MAX_ROWS


@click.command(epilog=examples("intervalq tasks cancel 1001 1002"))
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@tasks_store_option
@json_option
@click.pass_context
def cancel(ctx: click.Context, /, ids: tuple[str, ...], store: str | None, *, as_json_: bool) -> None:
    """Cancel waiting and running tasks.

    None of them is committed any more. Those that nobody has claimed are removed. The functions of the others
    are cancelled, and each is removed when its function has ended. The exit code is 1 if some do not exist:
    they are done, or were removed.
    """
    every = list(dict.fromkeys(ids))

    async def do(handle: Tasks) -> Cancelled:
        removed: list[str] = []
        stopping: list[str] = []
        with acting("cancel", named(every), handle._here().url) as acts:
            for start in range(0, len(every), MAX_ROWS):
                some = await handle.cancel(*every[start : start + MAX_ROWS])
                removed += some.removed
                stopping += some.stopping
                acts.result = many(len(removed) + len(stopping))
        return Cancelled(tuple(removed), tuple(stopping))

    done = on_tasks(store, do)
    missing = [id_ for id_ in every if id_ not in {*done.removed, *done.stopping}]
    if as_json_:
        click.echo(as_json({"removed": done.removed, "stopping": done.stopping, "missing": missing}))
    else:
        click.echo(f"{many(len(done.removed))} removed, {len(done.stopping)} being stopped")
        for id_ in missing:
            warn(f"task {id_} does not exist: it is done, or was removed")
    ctx.exit(1 if missing else 0)

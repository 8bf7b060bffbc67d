"""`intervalq tasks insert`: one task, or one for each line of standard input."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import anyio
import click
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intervalq._show import as_json, warn
from intervalq._watch.task import many
from intervalq.cli._app import Failed
from intervalq.cli._options import examples, json_option
from intervalq.cli._run.input import Input
from intervalq.cli._run.jobs import BadLine
from intervalq.cli._tasks.batch import Bar, Interrupt
from intervalq.cli._tasks.command import on_tasks, tasks_store_option
from intervalq.cli._tasks.follow_up import BatchOfLines
from intervalq.errors import (
    IntervalqError,
    InvalidInterval,
    InvalidOption,
    InvalidTask,
    StoreTimeout,
    short,
)
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Insert
from intervalq.tasks.store import MAX_ROWS

_MAX_BYTES: Final = 4 << 20
"""The maximum size of the values in one step, in bytes: a store keeps a whole step in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Makes tasks from given values; see the options."""

    queue: str
    text: bool
    id: str | None
    key: str | None
    at: float | datetime | None
    delay: str | None
    dedupe_key: str | None
    inbox: int | None
    replace: bool
    priority: int
    keep: str | None
    concurrency_per_key: int

    def task(self, handle: Tasks, given: str) -> Insert:
        """The task for one value.

        Raises:
            InvalidTask and the other errors of `Tasks.new`.
        """
        return handle.new(
            self.queue,
            self._value(given),
            id=self.id,
            key=self.key,
            at=self.at,
            delay=self.delay,
            dedupe_key=self.dedupe_key,
            inbox=self.inbox,
            replace=self.replace,
            priority=self.priority,
            keep=self.keep,
            concurrency_per_key=self.concurrency_per_key,
        )

    def follow_up(self, handle: Tasks, queue: str, given: str) -> Insert:
        """The task that waits for the end of all others: of the options, only `text` applies to it."""
        plain = replace(
            self, queue=queue, key=None, at=None, delay=None, inbox=None, replace=False, priority=0,
            keep=None, concurrency_per_key=1,
        )  # fmt: skip
        return plain.task(handle, given)

    def _value(self, given: str) -> Any:  # noqa: ANN401 - any JSON value
        try:
            given.encode()
        except UnicodeEncodeError:
            raise InvalidTask(f"{short(given)} is not UTF-8, so it can't be a task's value") from None
        if self.text:
            return given
        try:
            return json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InvalidTask(
                f"{short(given)} is not JSON ({error}): quote it, as in '\"text\"' with both kinds of quotes "
                "in a shell, or give --text to insert it as text"
            ) from None


@click.command(
    epilog=examples(
        """intervalq tasks insert mails '{"to": "ann"}'""",
        "intervalq tasks insert mails --text hello --key ann --delay 1m",
        "seq 9 | intervalq tasks insert numbers",
        """seq 9 | intervalq tasks insert numbers --follow-up reports '"all are done"'""",
    )
)
@click.argument("queue")
@click.argument("value", required=False)
@click.option("--text", is_flag=True, help="Insert VALUE, or each line, as text instead of JSON.")
@click.option("--id", "id_", metavar="ID", help="Id of the task; one that exists is refused.")
@click.option("--key", metavar="TEXT", help="Tasks with the same key run one at a time, in order.")
@click.option("--at", metavar="TIME", help="Start no earlier: 2030-01-31T08:00+01:00, or seconds since 1970.")
@click.option("--delay", metavar="D", help="Start no earlier than this from now: 10s, 2m, 1h, 1d.")
@click.option("--dedupe-key", metavar="TEXT", help="Insert nothing if the queue has a task with this key.")
@click.option(
    "--inbox",
    type=click.IntRange(0),
    metavar="N",
    help="With --key: how many tasks may wait behind those that may run.",
)
@click.option(
    "--priority", type=int, default=0, metavar="-9..9", help="Tasks of a higher priority are claimed first."
)
@click.option(
    "--concurrency-per-key",
    type=int,
    default=1,
    metavar="N",
    help="With --key: how many tasks of the key may run at a time.",
)
@click.option("--keep", metavar="D", help="Keep the outcome for this long after the end of the task: 1h, 7d.")
@click.option("--replace", is_flag=True, help="With --key: replace the waiting tasks of the key.")
@click.option(
    "--follow-up",
    nargs=2,
    metavar="QUEUE VALUE",
    help="Insert the lines as a batch, and a task that starts once all of them have ended.",
)
@tasks_store_option
@json_option
@click.pass_context
def insert(
    ctx: click.Context,
    *,
    queue: str,
    value: str | None,
    text: bool,
    id_: str | None,
    key: str | None,
    at: str | None,
    delay: str | None,
    dedupe_key: str | None,
    inbox: int | None,
    replace: bool,
    priority: int,
    concurrency_per_key: int,
    keep: str | None,
    follow_up: tuple[str, str] | None,
    store: str | None,
    as_json_: bool,
) -> None:
    """Insert one task or many.

    VALUE is JSON. Without it, or with -, values are read from standard input, one per line, and all options
    apply to each. The command stops at the first line that is not valid JSON; earlier lines are already
    inserted. With --follow-up, all lines are inserted or none, and having no lines is an error, because the
    follow-up would start at once. No option but --text applies to the follow-up.

    Prints the id of the task, or the number of tasks and the id of the follow-up. The exit code is 1 if some
    were not inserted, 2 for wrong use and for a line that is not valid, 130 after Ctrl-C.
    """
    made = Made(
        queue=queue, text=text, id=id_, key=key, at=None if at is None else _time(at), delay=delay,
        dedupe_key=dedupe_key, inbox=inbox, replace=replace, priority=priority, keep=keep,
        concurrency_per_key=concurrency_per_key,
    )  # fmt: skip
    if value is not None and value != "-":
        if follow_up is not None:
            raise InvalidOption("--follow-up waits for the lines of standard input: give no VALUE with it")
        on_tasks(store, lambda handle: _one(handle, made, value, as_json_=as_json_))
        return
    if id_ is not None or dedupe_key is not None:
        raise InvalidOption("--id and --dedupe-key apply to a single task: give a VALUE with them")
    if sys.stdin.isatty():
        warn("reading values from the terminal, one per line; end with Ctrl-D")
    source = Input(None)
    lines: _Lines | BatchOfLines = _Lines(source, made)
    if follow_up is not None:
        lines = BatchOfLines(source, made.task, lambda handle: made.follow_up(handle, *follow_up), blank=text)
    on_tasks(store, lines.insert)
    ctx.exit(lines.end(as_json_=as_json_))


async def _one(handle: Tasks, made: Made, value: str, *, as_json_: bool) -> None:
    part = made.task(handle, value)
    modified = await handle.modify(part)
    existing = dict(modified.existing).get(part.id)
    if existing is not None:
        warn(f"nothing was inserted: task {existing} has the dedupe key {short(made.dedupe_key)}")
    if as_json_:
        click.echo(as_json({"id": existing or part.id, "inserted": existing is None}))
    else:
        click.echo(existing or part.id)


class _Lines:
    """Inserts the lines of standard input into a queue, in order and in batches of what has arrived."""

    def __init__(self, source: Input, made: Made) -> None:
        self._source, self._made = source, made
        self._inserted = 0
        self._at = 0  # the last line that is known to be inserted
        self._tried = 0  # the last line of a batch that was sent to the store
        self._bad: tuple[int, IntervalqError] | None = None
        self._error: IntervalqError | None = None
        self._interrupt = Interrupt()

    async def insert(self, handle: Tasks) -> None:
        self._made.task(handle, '"1"')  # options are checked before anything is read
        send, receive = anyio.create_memory_object_stream[tuple[int, Insert]](MAX_ROWS)
        async with anyio.create_task_group() as group:
            await group.start(self._interrupt.heed, group.cancel_scope)
            async with anyio.create_task_group() as reading:
                reading.start_soon(self._read, handle, send)
                await self._write(handle, receive)
                reading.cancel_scope.cancel()
            group.cancel_scope.cancel()

    async def _read(self, handle: Tasks, send: MemoryObjectSendStream[tuple[int, Insert]]) -> None:
        number = 0
        async with send:
            try:
                async for number, line in self._source.lines():
                    if line.strip() or self._made.text:
                        await send.send((number, self._made.task(handle, line)))
            except BadLine as error:
                self._bad = (error.number, error)
            except (InvalidTask, InvalidInterval) as error:
                self._bad = (number, error)
            except anyio.BrokenResourceError:  # inserting has ended with an error
                return

    async def _write(self, handle: Tasks, receive: MemoryObjectReceiveStream[tuple[int, Insert]]) -> None:
        with Bar("inserted") as bar, receive:
            while batch := await self._batch(receive):
                self._tried = batch[-1][0]
                try:
                    await handle.modify(*(part for _, part in batch))
                except IntervalqError as error:
                    self._error = error
                    return
                self._inserted += len(batch)
                self._at = self._tried
                bar.advance(len(batch))

    async def _batch(
        self, receive: MemoryObjectReceiveStream[tuple[int, Insert]]
    ) -> list[tuple[int, Insert]]:
        """The lines that have arrived by now, at least one; an empty list at the end."""
        batch: list[tuple[int, Insert]] = []
        size = 0
        while len(batch) < MAX_ROWS and size < _MAX_BYTES:
            try:
                item = receive.receive_nowait()
            except anyio.WouldBlock:
                if batch:
                    break
                first = await self._interrupt.or_until(receive.receive)
                if first is None:
                    break
                item = first
            except anyio.EndOfStream:
                break
            batch.append(item)
            size += len(item[1].json)
        return [] if self._interrupt.by is not None else batch

    def end(self, *, as_json_: bool) -> int:
        """Report what was done, and return the exit code."""
        if as_json_:
            click.echo(as_json({"inserted": self._inserted}))
        else:
            click.echo(f"{many(self._inserted)} inserted")
        if self._error is not None:
            unsure = (
                "may be inserted or not" if isinstance(self._error, StoreTimeout) else "were not inserted"
            )
            warn(f"lines {self._at + 1} to {self._tried} {unsure}, none after that was: {self._error}")
            return 1
        if self._interrupt.by is not None:
            sure = "" if self._at == self._tried else f"; those up to {self._tried} may be, too"
            warn(f"interrupted: what was inserted ends with line {self._at}{sure}")
            return 128 + self._interrupt.by
        if self._bad is not None:
            number, error = self._bad
            reason = str(error) if isinstance(error, BadLine) else f"standard input, line {number}: {error}"
            warn(f"{reason}; inserted before it: {many(self._inserted)}")
            return 2
        return 0


def _time(given: str) -> float | datetime:
    try:
        return float(given)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise Failed(
            f"--at {short(given)} is not a time: give 2030-01-31T08:00+01:00, or seconds since 1970", 2
        ) from None

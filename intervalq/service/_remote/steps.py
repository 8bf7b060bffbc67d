"""Steps of intervalq.v1: a message in, the answer of the store or its error out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final

from intervalq._spec import parse
from intervalq._wire import verbs
from intervalq._wire.failures import failure_of
from intervalq._wire.intervalq_v1_pb2 import LEDGERS, QUEUES, SCHEDULES, TASKS, Failure, Result, Step
from intervalq._wire.queues import read_command, read_common, write_answer, write_keyed_answer
from intervalq._wire.values import MalformedValue, dumps, loads
from intervalq._wire.verbs import NAMES, SCHEDULES_READ, VERSION, Names, ReadSchedules, ScheduleCommand
from intervalq.errors import DependencyError, InboxFull, IntervalqError, InvalidName, StoreError
from intervalq.keyed import Common
from intervalq.ledger import rules as ledgers
from intervalq.ledger.rules import Command as LedgerCommand
from intervalq.rules import Command
from intervalq.service._access import Anybody, Caller, need
from intervalq.service._actions import Act
from intervalq.service._large import PAGE, away
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote import acts, rights
from intervalq.service._remote.stores import Stores
from intervalq.service._remote.tasks import MAX_SHOWN, RemoteTasks
from intervalq.store import Swapped, pairing
from intervalq.tasks.rules import Command as TaskCommand
from intervalq.tasks.rules import Outcomes, Select

_OF_SESSIONS: Final = (  # commands that have one
    *(ledgers.Claim, ledgers.Start, ledgers.Record),
    *(ledgers.Release, ledgers.Beat, ledgers.Leave),
)
_RECORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?::[A-Za-z0-9-][A-Za-z0-9._-]{0,199})?")


async def apply(stores: Stores, step: Step, caller: Caller) -> Result:
    """Do a step.

    Raises:
        Refusal: it is malformed, or the caller may not do it; nothing was done.
    """
    if step.version != VERSION:
        return Result(failure=Failure(kind="VersionMismatch", message=other_version(step.version)))
    read = _READ.get(step.kind)
    if read is None:
        raise Refusal(Code.INVALID_ARGUMENT, f"{step.kind} is not a kind of store")
    try:
        command = read(step.command)
        known = read_common(step.known) if step.known else None
        now = step.now if step.HasField("now") else None
        return Result(answer=await do(stores, step.kind, step.name, command, caller, known=known, now=now))
    except (StoreError, DependencyError, InboxFull) as error:
        return Result(failure=failure_of(error))
    except (MalformedValue, IntervalqError) as error:
        raise Refusal(Code.INVALID_ARGUMENT, str(error)) from error


async def do(
    stores: Stores,
    kind: int,
    name: str,
    command: Any,  # noqa: ANN401 - one of the kind
    caller: Caller,
    *,
    known: Common | None = None,
    now: int | None = None,
) -> bytes:
    """Do a command if the caller may; returns the answer as JSON.

    Raises:
        Refusal: it may not do it; nothing was done.
        IntervalqError: the command can't be done, or the store has failed.
    """
    if now is not None:
        await need(caller, [rights.CLOCK])
    if kind == QUEUES:
        return await _queue(stores, name, command, caller, known=known, now=now)
    return await _DO[kind](stores, name, command, caller, now)


def other_version(version: int) -> str:
    """Why the commands of a client can't be read."""
    older = "client" if version < VERSION else "service"
    return (
        f"the client speaks version {version} of intervalq.v1's commands, and this service speaks {VERSION}: "
        f"upgrade the {older}"
    )


def record_name(name: str) -> str:
    """Check the name of a queue's record; returns it unchanged.

    Raises:
        InvalidName: no record can have it.
    """
    if not _RECORD.fullmatch(name):
        raise InvalidName(name)
    return name


async def _queue(
    stores: Stores,
    name: str,
    command: Command | Names,
    caller: Caller,
    *,
    known: Common | None,
    now: int | None,
) -> bytes:
    store = stores.of_queues()
    if isinstance(command, Names):
        names = await store.names()
        if not isinstance(caller, Anybody):
            seen = await rights.readable(caller, map(rights.queue_of, names))
            names = [one for one in names if rights.queue_of(one) in seen]
        return dumps(NAMES, tuple(names))
    record_name(name)
    await rights.need_for_queue(caller, name, command)
    if known is None:
        done = write_answer(await store.apply(name, command, now))
    elif not name.startswith(f"{known.record}:"):
        raise Refusal(Code.INVALID_ARGUMENT, "a key's queue is under the rate of another queue")
    else:
        done = write_keyed_answer(await pairing(store).apply_keyed(name, command, known, now))
    stores.actions.note_queue(caller, name, command)
    return done


async def _tasks(
    stores: Stores, name: str, command: TaskCommand[Any], caller: Caller, now: int | None
) -> bytes:
    del name
    answer_of = verbs.answer_of(command)
    store = stores.of_tasks()
    tasks = RemoteTasks(store, caller)
    if not isinstance(command, Select | Outcomes):
        queues = await acts.queues_before(store, command)
        answer = await tasks.apply(command, now)
        _note(stores, caller, acts.of_tasks(command, answer, queues))
        return dumps(answer_of, answer)
    async with stores.answers.making(command.ids):
        done = await tasks.listed(command, now, stores.answers)
        return await away(len(done) > PAGE, dumps, answer_of, done)


async def _ledger(
    stores: Stores, name: str, command: LedgerCommand | Names, caller: Caller, now: int | None
) -> bytes:
    store = stores.of_ledgers()
    if isinstance(command, Names):
        names = await store.names()
        if not isinstance(caller, Anybody):
            seen = await rights.readable(caller, map(rights.ledger, names))
            names = [one for one in names if rights.ledger(one) in seen]
        return dumps(NAMES, tuple(names))
    parse.name(name, what="ledger")
    await need(caller, [rights.of_ledger(name, command)])
    if isinstance(command, ledgers.Look) and not 1 <= command.limit <= MAX_SHOWN:
        raise Refusal(Code.INVALID_ARGUMENT, f"a page has 1 to {MAX_SHOWN} rows")
    if isinstance(command, _OF_SESSIONS):
        command = command._replace(session=caller.claimant(command.session))
    answer = await store.apply(name, command, now)
    if answer.found:
        _note(stores, caller, acts.of_ledger(name, command))
    return dumps(verbs.LEDGER_ANSWER, answer)


async def _schedules(
    stores: Stores, name: str, command: ScheduleCommand, caller: Caller, now: int | None
) -> bytes:
    store = stores.of_schedules()
    await need(caller, rights.of_schedule(command))
    if isinstance(command, ReadSchedules):
        found = await store.read_schedules(command.names, now)
        texts = found.texts
        if command.names is None and not isinstance(caller, Anybody):
            seen = await rights.readable(caller, map(rights.schedule, texts))
            texts = {name: text for name, text in texts.items() if rights.schedule(name) in seen}
        return dumps(SCHEDULES_READ, (found.now, tuple(texts.items())))
    name, known, text, earliest = command
    parse.name(name, what="schedule")
    swapped = await store.swap_schedule(name, known, text, earliest=earliest, now=now)
    if swapped.done:
        _note(stores, caller, acts.of_swap(command))
    return dumps(Swapped, swapped)


def _note(stores: Stores, caller: Caller, done: Iterable[Act]) -> None:
    """Write down what a command has changed for everybody."""
    for act in done:
        stores.actions.note(caller, act)


_READ: Final[dict[int, Callable[[bytes], Any]]] = {
    QUEUES: read_command,
    TASKS: partial(loads, verbs.TASKS),
    LEDGERS: partial(loads, verbs.LEDGERS),
    SCHEDULES: partial(loads, verbs.SCHEDULES),
}
_DO: Final[dict[int, Callable[[Stores, str, Any, Caller, int | None], Awaitable[bytes]]]] = {
    TASKS: _tasks,
    LEDGERS: _ledger,
    SCHEDULES: _schedules,
}

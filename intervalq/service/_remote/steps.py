"""Steps of intervalq.v1: a message in, the answer of the store or its error out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from intervalq._spec import parse
from intervalq._wire import verbs
from intervalq._wire.failures import failure_of
from intervalq._wire.intervalq_v1_pb2 import LEDGERS, QUEUES, SCHEDULES, TASKS, Failure, Result, Step
from intervalq._wire.queues import read_command, read_common, write_answer, write_keyed_answer
from intervalq._wire.values import MalformedValue, dumps, loads
from intervalq._wire.verbs import NAMES, SCHEDULES_READ, VERSION, Names, ReadSchedules, ScheduleCommand
from intervalq.errors import DependencyError, InboxFull, IntervalqError, InvalidName, StoreError
from intervalq.ledger import rules as ledgers
from intervalq.ledger.rules import Command as LedgerCommand
from intervalq.service._access import Anybody, Caller, need
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote import rights
from intervalq.service._remote.stores import Stores
from intervalq.service._remote.tasks import MAX_SHOWN, RemoteTasks
from intervalq.store import Swapped, pairing
from intervalq.tasks.rules import Command as TaskCommand

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
    do = _DO.get(step.kind)
    if do is None:
        raise Refusal(Code.INVALID_ARGUMENT, f"{step.kind} is no kind of store")
    now = step.now if step.HasField("now") else None
    try:
        if now is not None:
            await need(caller, [rights.CLOCK])
        return Result(answer=await do(stores, step, caller, now))
    except (StoreError, DependencyError, InboxFull) as error:
        return Result(failure=failure_of(error))
    except (MalformedValue, IntervalqError) as error:
        raise Refusal(Code.INVALID_ARGUMENT, str(error)) from error


def other_version(version: int) -> str:
    """Why a client isn't understood."""
    older = "client" if version < VERSION else "service"
    return (
        f"the client speaks version {version} of intervalq.v1's commands, and this service speaks {VERSION}: "
        f"upgrade the {older}"
    )


def record_name(name: str) -> str:
    """The name of a queue's record, unchanged.

    Raises:
        InvalidName: it is none.
    """
    if not _RECORD.fullmatch(name):
        raise InvalidName(name)
    return name


async def _queue(stores: Stores, step: Step, caller: Caller, now: int | None) -> bytes:
    store, command, name = stores.of_queues(), read_command(step.command), step.name
    if isinstance(command, Names):
        names = await store.names()
        if not isinstance(caller, Anybody):
            seen = await rights.readable(caller, map(rights.queue_of, names))
            names = [one for one in names if rights.queue_of(one) in seen]
        return dumps(NAMES, tuple(names))
    record_name(name)
    await rights.need_for_queue(caller, name, command)
    if not step.known:
        return write_answer(await store.apply(name, command, now))
    known = read_common(step.known)
    if not name.startswith(f"{known.record}:"):
        raise MalformedValue("a key's queue is under the rate of another queue")
    return write_keyed_answer(await pairing(store).apply_keyed(name, command, known, now))


async def _tasks(stores: Stores, step: Step, caller: Caller, now: int | None) -> bytes:
    command: TaskCommand[Any] = loads(verbs.TASKS, step.command)
    done = await RemoteTasks(stores.of_tasks(), caller).apply(command, now)
    return dumps(verbs.answer_of(command), done)


async def _ledger(stores: Stores, step: Step, caller: Caller, now: int | None) -> bytes:
    store = stores.of_ledgers()
    command = cast("LedgerCommand | Names", loads(verbs.LEDGERS, step.command))
    if isinstance(command, Names):
        names = await store.names()
        if not isinstance(caller, Anybody):
            seen = await rights.readable(caller, map(rights.ledger, names))
            names = [one for one in names if rights.ledger(one) in seen]
        return dumps(NAMES, tuple(names))
    name = parse.name(step.name, what="ledger")
    await need(caller, [rights.of_ledger(name, command)])
    if isinstance(command, ledgers.Look) and not 1 <= command.limit <= MAX_SHOWN:
        raise MalformedValue(f"a page has 1 to {MAX_SHOWN} rows")
    if isinstance(command, _OF_SESSIONS):
        command = command._replace(session=caller.claimant(command.session))
    return dumps(verbs.LEDGER_ANSWER, await store.apply(name, command, now))


async def _schedules(stores: Stores, step: Step, caller: Caller, now: int | None) -> bytes:
    store = stores.of_schedules()
    command: ScheduleCommand = loads(verbs.SCHEDULES, step.command)
    await need(caller, rights.of_schedule(command))
    if isinstance(command, ReadSchedules):
        found = await store.read_schedules(command.names, now)
        texts = found.texts
        if command.names is None and not isinstance(caller, Anybody):
            seen = await rights.readable(caller, map(rights.schedule, texts))
            texts = {name: text for name, text in texts.items() if rights.schedule(name) in seen}
        return dumps(SCHEDULES_READ, (found.now, tuple(texts.items())))
    parse.name(command.name, what="schedule")
    name, known, text, earliest = command
    return dumps(Swapped, await store.swap_schedule(name, known, text, earliest=earliest, now=now))


_DO: Final[dict[int, Callable[[Stores, Step, Caller, int | None], Awaitable[bytes]]]] = {
    QUEUES: _queue,
    TASKS: _tasks,
    LEDGERS: _ledger,
    SCHEDULES: _schedules,
}

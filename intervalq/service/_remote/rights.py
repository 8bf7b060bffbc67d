"""What a step of intervalq.v1 needs: which actions, on which names.

Queues and tasks have the names of their queues (a key has the rights of its queue). Other things have names
that no queue can have: `ledger#NAME`, `schedule#NAME`, `lock#NAME`, `session#ID`; `clock#` is the clock of a
step.
"""

from __future__ import annotations

from collections.abc import Iterable

from intervalq._wire.verbs import ReadSchedules, ScheduleCommand
from intervalq.ledger import rules as ledgers
from intervalq.rules import FOREVER, Advance, Command, Finish, Hold, Inspect
from intervalq.service._access import Caller, Wanted, need

CLOCK: Wanted = ("administer", "clock#")
"""A step at a time that its sender says."""
SESSIONS: Wanted = ("administer", "session#")
"""A look at all sessions."""


async def need_for_queue(caller: Caller, name: str, command: Command) -> None:
    """Check a command on a queue. Who paces may also look at it.

    Raises:
        Refusal: the caller may not do it.
    """
    queue = queue_of(name)
    if isinstance(command, Advance | Finish) or (isinstance(command, Hold) and command.length < FOREVER):
        action = "pace"
    elif isinstance(command, Inspect):
        action = "pace" if await caller.denied([("read", queue)], "") else "read"
    else:
        action = "administer"
    await need(caller, [(action, queue)])


def queue_of(name: str) -> str:
    """The queue of `name` or `name:key`."""
    return name.partition(":")[0]


def of_ledger(name: str, command: ledgers.Command) -> Wanted:
    """What a command on a ledger needs."""
    if isinstance(command, ledgers.Look | ledgers.Count):
        action = "read"
    elif isinstance(command, ledgers.Cancel | ledgers.Expire | ledgers.Drop):
        action = "administer"
    else:
        action = "delete" if isinstance(command, ledgers.Forget) else "claim"
    return action, ledger(name)


def of_schedule(command: ScheduleCommand) -> list[Wanted]:
    """What a command on schedules needs; nothing: it looks at all of them, and sees those it may read."""
    if isinstance(command, ReadSchedules):
        return [("read", schedule(name)) for name in command.names or ()]
    action = "insert" if command.known is None else "delete" if command.text is None else "change"
    return [(action, schedule(command.name))]


async def readable(caller: Caller, names: Iterable[str]) -> set[str]:
    """Those of these names that a caller may read."""
    known = {*names}
    return known - {name for _, name in await caller.denied([("read", name) for name in known], "")}


def ledger(name: str) -> str:
    """The name of a ledger, as rules have it."""
    return f"ledger#{name}"


def schedule(name: str) -> str:
    """The name of a schedule, as rules have it."""
    return f"schedule#{name}"


def lock(name: str) -> str:
    """The name of a lock, as rules have it."""
    return f"lock#{name}"


def session(id_: str) -> str:
    """The name of a session of tasks in access rules. Its beginner has the right to `claim` in it."""
    return f"session#{id_}"

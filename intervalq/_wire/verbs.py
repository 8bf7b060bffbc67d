"""The commands that each kind of store takes over the network, and the types of their answers."""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast, get_args

from intervalq import rules as queues
from intervalq.ledger import rules as ledgers
from intervalq.store import Swapped
from intervalq.tasks import rules as tasks

A = TypeVar("A")

VERSION: Final = 1
"""The version of commands and answers."""

MAX_BYTES: Final = 4 * 1024 * 1024
"""The maximum length of a message to a service, in bytes."""

MAX_ANSWER: Final = 512 << 20
"""The maximum length of an answer, in bytes: twice a thousand task values of the default maximum size."""


class Names(NamedTuple):
    """List the queues or ledgers that the caller may read. The answer is a list of names, sorted."""


class ReadSchedules(NamedTuple):
    """See `Scheduling.read_schedules`; the answer is [now, [[name, text], ...]]."""

    names: tuple[str, ...] | None = None


class SwapSchedule(NamedTuple):
    """See `Scheduling.swap_schedule`."""

    name: str
    known: str | None = None
    text: str | None = None
    earliest: int = 0


ScheduleCommand: TypeAlias = ReadSchedules | SwapSchedule

NAMES: Final[Any] = tuple[str, ...]
"""The answer to `Names`."""

LEDGER_ANSWER: Final = ledgers.Answer

SCHEDULES_READ: Final[Any] = tuple[int, tuple[tuple[str, str], ...]]
"""The answer to `ReadSchedules`: the store's clock, and pairs of names and texts."""

_OF_TASKS: Final[dict[type, Any]] = {
    tasks.Modify: tasks.Modified,
    tasks.Cancel: tasks.Cancelled,
    tasks.Work: tasks.Worked,
    tasks.Begin: NoneType,
    tasks.Beat: tasks.Beaten,
    tasks.End: NoneType,
    tasks.Acquire: tasks.Acquired,
    tasks.Release: bool,
    tasks.Select: tuple[tasks.Row, ...],
    tasks.Count: tuple[tasks.QueueStats, ...],
    tasks.Outcomes: tuple[tasks.OutcomeRow, ...],
    tasks.Sessions: tuple[tasks.Session, ...],
}

QUEUES: Final[Any] = (
    queues.Advance
    | queues.Hold
    | queues.Resume
    | queues.Configure
    | queues.Reclaim
    | queues.Finish
    | queues.Inspect
    | queues.Drop
    | Names
)
TASKS: Final[Any] = reduce(or_, _OF_TASKS)
LEDGERS: Final[Any] = ledgers.Command | Names
SCHEDULES: Final[Any] = ScheduleCommand


class Verb(NamedTuple):
    """A command that services also take over HTTP/JSON."""

    path: str
    kind: str
    """The kind of store that does it, as `Kind` of intervalq.v1."""
    command: Any
    """Its class."""
    answer: Any
    """The type of its answer."""


VERBS: Final = (
    *(Verb(f"/v1/tasks/{each.__name__.lower()}", "TASKS", each, _OF_TASKS[each]) for each in _OF_TASKS),
    *(
        Verb(f"/v1/ledgers/{{name}}/{each.__name__.lower()}", "LEDGERS", each, LEDGER_ANSWER)
        for each in get_args(ledgers.Command)
    ),
    Verb("/v1/schedules/read", "SCHEDULES", ReadSchedules, SCHEDULES_READ),
    Verb("/v1/schedules/swap", "SCHEDULES", SwapSchedule, Swapped),
    Verb("/v1/queues", "QUEUES", Names, NAMES),
    Verb("/v1/ledgers", "LEDGERS", Names, NAMES),
)
"""All commands over HTTP: POST sends the fields of a command, GET lists names. For queues, HTTP has other
verbs, with which the service itself waits for slots."""


def answer_of(command: tasks.Command[A]) -> type[A]:
    """The type of the answer to a command on tasks."""
    return cast("type[A]", _OF_TASKS[type(command)])

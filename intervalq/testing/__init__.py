"""Tools to test a store, or code that uses queues: the same that intervalq's own tests use.

`StoreSuite` is the conformance suite of stores, `TaskSuite` that of stores of durable tasks, `LedgerSuite`
that of stores of ledgers, `ScheduleSuite` that of stores that keep schedules: subclass it in a test module
and give it a `store_url` fixture. `no_waiting`, `virtual_clock` and `virtual_time` make tests of code that
waits fast, by clocks that jump; they need none of the packages that the suites need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from intervalq._lazy import lazy_names
from intervalq.testing.clock import VirtualClock, no_waiting, virtual_clock
from intervalq.testing.virtual import virtual_time

if TYPE_CHECKING:
    from intervalq.testing._ledgers.suite import LedgerSuite
    from intervalq.testing._tasks.ranges import RangingTaskSuite
    from intervalq.testing._tasks.suite import TaskSuite
    from intervalq.testing._tasks.transactions import TransactionalTaskSuite
    from intervalq.testing._tasks.waking import WakingTaskSuite
    from intervalq.testing.commands import CommandSource
    from intervalq.testing.conformance import StoreSuite
    from intervalq.testing.schedules import ScheduleSuite

__all__ = [
    "CommandSource",
    "LedgerSuite",
    "RangingTaskSuite",
    "ScheduleSuite",
    "StoreSuite",
    "TaskSuite",
    "TransactionalTaskSuite",
    "VirtualClock",
    "WakingTaskSuite",
    "no_waiting",
    "virtual_clock",
    "virtual_time",
]

_WHERE: Final = {
    "CommandSource": "commands",
    "LedgerSuite": "_ledgers.suite",
    "RangingTaskSuite": "_tasks.ranges",
    "ScheduleSuite": "schedules",
    "StoreSuite": "conformance",
    "TaskSuite": "_tasks.suite",
    "TransactionalTaskSuite": "_tasks.transactions",
    "WakingTaskSuite": "_tasks.waking",
}

__getattr__ = lazy_names(
    __name__, _WHERE, needs=("pytest", "hypothesis"), what="a conformance suite", extra="testing"
)

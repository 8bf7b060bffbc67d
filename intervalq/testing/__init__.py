"""How to prove a store, and how to test code that uses queues: the same doors that intervalq's tests use.

`StoreSuite` is the conformance suite of stores, `TaskSuite` that of stores of durable tasks, `LedgerSuite`
that of stores of ledgers: subclass it in a test module and give it a `store_url` fixture. `virtual_time` runs
async code on a clock that jumps instead of waiting.
"""

from intervalq.testing.commands import CommandSource
from intervalq.testing.conformance import StoreSuite
from intervalq.testing.ledgers_suite import LedgerSuite
from intervalq.testing.tasks_ranges import RangingTaskSuite
from intervalq.testing.tasks_suite import TaskSuite
from intervalq.testing.tasks_transactions import TransactionalTaskSuite
from intervalq.testing.tasks_waking import WakingTaskSuite
from intervalq.testing.virtual import virtual_time

__all__ = [
    "CommandSource",
    "LedgerSuite",
    "RangingTaskSuite",
    "StoreSuite",
    "TaskSuite",
    "TransactionalTaskSuite",
    "WakingTaskSuite",
    "virtual_time",
]

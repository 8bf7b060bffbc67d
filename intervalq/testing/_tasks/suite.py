"""The conformance suite of task stores: a store is accepted if it passes these tests.

Random commands compare its answers with the rules; separate tests cover what the rules can't show (concurrent
use, transactions, wake-ups, chance).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from typing import Any, Final

from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intervalq.errors import DependencyError, InboxFull
from intervalq.tasks import rules
from intervalq.tasks.rules import (
    Beaten,
    Cancelled,
    Command,
    Delete,
    End,
    Modified,
    Modify,
    OutcomeRow,
    Row,
    Session,
    Work,
    Worked,
)
from intervalq.tasks.store import Ranging, TaskStore, Transactional, Waking
from intervalq.testing._tasks.base import TaskSuiteBase
from intervalq.testing._tasks.behaviour import BehaviourTests
from intervalq.testing._tasks.commands import TaskCommandSource
from intervalq.testing._tasks.locks import LockTests
from intervalq.testing._tasks.model import ModelTable
from intervalq.testing._tasks.operating import OperatingTests
from intervalq.testing._tasks.outcomes import OutcomeTests
from intervalq.testing._tasks.plain import PlainTests
from intervalq.testing._tasks.ranges import RangingTaskSuite
from intervalq.testing._tasks.refusals import RefusalTests
from intervalq.testing._tasks.sharing import SharingTests
from intervalq.testing._tasks.together import TogetherTests
from intervalq.testing._tasks.transactions import TransactionalTaskSuite
from intervalq.testing._tasks.waking import WakingTaskSuite

_SEQUENCES: Final = int(os.environ.get("INTERVALQ_TEST_SEQUENCES", "12"))
"""The number of random sequences of commands that a store is tested with."""

_ALL: Final = 8
_SOME: Final = 3
"""After each `_ALL`th command and the last one, all looks are compared; after others, this many."""


class RulesTests(TaskSuiteBase):
    """The store against `intervalq.tasks.rules`, command by command."""

    steps = 40
    """The number of commands in each random sequence."""

    @settings(
        max_examples=_SEQUENCES,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(seed=st.integers(0, 2**32))
    def test_every_answer_is_that_of_the_rules(
        self, portal: BlockingPortal, store: TaskStore, seed: int
    ) -> None:
        """Random commands with a given clock: store and rules give the same answers and tasks."""
        portal.call(self._sequence, store, seed)

    async def _sequence(self, store: TaskStore, seed: int) -> None:
        source = TaskCommandSource(
            seed, f"suite-{secrets.token_hex(6)}", keeps=self.keeps_outcomes, shares=self.shares_keys,
            follows=self.follows_up,
        )  # fmt: skip
        model = ModelTable()
        done: list[str] = []
        try:
            for number in range(self.steps):
                command, now = source.next(model)
                done.append(f"{number}: at {now}: {command}")
                context = f"seed {seed}:\n" + "\n".join(done[-6:])
                answer = await outcome(store, command, now)
                if isinstance(command, Work) and isinstance(answer, Worked):
                    model.choose(command.queues, [row.id for row in answer.claimed])
                try:
                    expected = outcome_of_rules(model, command, now)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{context}") from error
                same(answer, expected, source, context)
                looks = source.looks(model)
                # What is wrong stays wrong for some time, and each look takes as long as a command.
                if (number + 1) % _ALL and number + 1 < self.steps:
                    looks = source.random.sample(looks, _SOME)
                for look in looks:
                    seen = await outcome(store, look, now)
                    same(seen, outcome_of_rules(model, look, now), source, f"{context}\nthen {look}")
        finally:
            for session in source.sessions:
                await store.apply(End(session))
            for id_ in model.rows:  # one by one: some may not be there if the test failed
                await outcome(store, Modify(deletes=(Delete(id_, 0),), force=True), source.now)


async def outcome(store: TaskStore, command: Command[Any], now: int) -> object:
    """The store's answer, or its error if the rules expect that error."""
    try:
        return await store.apply(command, now)
    except (DependencyError, InboxFull) as error:
        return error


def outcome_of_rules(model: ModelTable, command: Command[Any], now: int) -> object:
    """The answer that the rules expect."""
    before = dict(model.rows), dict(model.marks)
    try:
        return rules.apply(model, command, now)
    except (DependencyError, InboxFull) as error:
        assert (model.rows, model.marks) == before, "the rules changed something, and then refused it"
        return error


def same(answer: object, expected: object, source: TaskCommandSource, context: str) -> None:
    """Compare two answers, except for what a store may choose freely."""
    ours, theirs = (_comparable(thing, source) for thing in (answer, expected))
    assert ours == theirs, f"the store says\n{ours}\nthe rules say\n{theirs}\n{context}"


def _comparable(thing: object, source: TaskCommandSource) -> object:  # noqa: PLR0911 - one a kind
    """An answer without what may differ: the spelling of JSON, the order of claims, data of other users."""
    if isinstance(thing, DependencyError):
        fields = ("inserts", "changes", "deletes", "depends", "claims")
        return {field: sorted(getattr(thing, field)) for field in fields}
    if isinstance(thing, InboxFull):
        return thing.queue, thing.key, thing.limit
    if isinstance(thing, Modified):
        return _rows(thing.inserted), _rows(thing.changed), list(thing.existing)
    if isinstance(thing, Worked):
        claimed = sorted(_rows(thing.claimed))
        return thing.alive, sorted(thing.lost), claimed, thing.wait, thing.ranges, thing.lost_ranges
    if isinstance(thing, Beaten):
        ours = sorted(session for session in thing.lapsed if session in source.sessions)
        return thing.alive, thing.claim_count, ours, sorted(thing.cancelled)
    if isinstance(thing, Cancelled):
        return sorted(thing.removed), sorted(thing.stopping)
    if isinstance(thing, tuple) and thing and isinstance(thing[0], Session):
        return [session for session in thing if session.id in source.sessions]
    if isinstance(thing, tuple) and thing and isinstance(thing[0], Row):
        return _rows(thing)
    if isinstance(thing, tuple) and thing and isinstance(thing[0], OutcomeRow):
        return sorted(repr(row._replace(json=_json(row.json))) for row in thing)
    return thing if thing != () else []


def _rows(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    # The value as text again, with sorted keys: text distinguishes 1 from 1.0.
    return [tuple(row._replace(json=_json(row.json))) for row in rows]


def _json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


class TaskSuite(
    RulesTests,
    BehaviourTests,
    RefusalTests,
    TogetherTests,
    SharingTests,
    PlainTests,
    LockTests,
    OperatingTests,
    OutcomeTests,
):
    """Subclass it as `class TestMyStore(TaskSuite)` with a `store_url` fixture that returns a URL.

    The store may be in use by others: every test has names of its own, and removes what it created. Further
    suites test what a store can do beyond `TaskStore`, by the protocols in `intervalq.tasks.store`:
    `class TestMyStore(TaskSuite, TransactionalTaskSuite, WakingTaskSuite, RangingTaskSuite)`.
    """

    left_out: tuple[type, ...] = ()
    """Suites that are skipped although the store has the methods, because they can't work in its setup."""

    def test_all_that_it_can_is_tried(self, store: TaskStore) -> None:
        """Every protocol that the store has must have its suite."""
        for protocol, suite in _FURTHER:
            can = isinstance(store, protocol) and suite not in self.left_out
            assert can == isinstance(self, suite), f"add or remove {suite.__name__}"


_FURTHER: Final[tuple[tuple[type, type], ...]] = (
    (Transactional, TransactionalTaskSuite),
    (Waking, WakingTaskSuite),
    (Ranging, RangingTaskSuite),
)

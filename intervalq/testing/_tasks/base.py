"""Fixtures and small helpers shared by the parts of the suite of task stores."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from intervalq.tasks.rules import (
    SECOND,
    Begin,
    Command,
    Delete,
    End,
    Finished,
    Insert,
    Modify,
    Row,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import Ranging, TaskStore, open_task_store
from intervalq.testing._suite import Suite

A = TypeVar("A")

PATIENCE = 60
"""Seconds until a test that waits for something gives up."""

_PAGE = 1000

_BEFORE = ("", "/", "/map/", "a=b/", "A/")
_BEHIND = ("/input", "=", "", "/a=b", "/ b", ":1.2_3", " //..//")


class Names:
    """Provides names that nobody else uses, and remembers them to clean up."""

    def __init__(self) -> None:
        self.word = f"suite-{secrets.token_hex(6)}"
        self.queues: list[str] = []
        self.sessions: list[str] = []
        self._number = 0

    def fresh(self) -> str:
        """Part of a name."""
        self._number += 1
        return f"{self.word}-{self._number}"

    def queue(self) -> str:
        """A queue whose name has characters that are special to some store."""
        number = len(self.queues)
        self.queues.append(f"{_BEFORE[number % len(_BEFORE)]}{self.fresh()}{_BEHIND[number % len(_BEHIND)]}")
        return self.queues[-1]

    def session(self) -> str:
        """A session that has not begun."""
        self.sessions.append(self.fresh())
        return self.sessions[-1]

    async def begun(self, store: TaskStore, **fields: Any) -> str:
        """A session with a long expiry, already begun."""
        session = self.session()
        await store.apply(Begin(Session(**{"id": session, "expiry": 3600 * SECOND, **fields})))
        return session

    async def clean(self, store: TaskStore) -> None:
        """Remove everything that was created under these names."""
        for session in self.sessions:
            await store.apply(End(session))
        if isinstance(store, Ranging):
            await self._clean_ranges(store)
        for queue in self.queues:
            while rows := await store.apply(Select(queue=queue, limit=_PAGE)):
                deletes = tuple(Delete(row.id, row.version) for row in rows)
                await store.apply(Modify(deletes=deletes, force=True))

    async def _clean_ranges(self, store: TaskStore) -> None:
        session = await self.begun(store)
        done: tuple[Finished, ...] = ()
        for queue in self.queues:
            while True:
                worked = await store.apply(Work(session, finished=done, queues=(queue,), limit=_PAGE))
                done = tuple(Finished(range_) for range_, _ in worked.ranges)
                if not (worked.claimed or worked.ranges):
                    break
        await store.apply(End(session))


class TaskSuiteBase(Suite):
    """Fixtures of the suite's parts, and attributes by which a store's suite may deviate."""

    counts_versions: bool = True
    """Versions count the changes of a task, from 0. False: each change only increases them."""
    tells_times: bool = True
    """Inserting or changing a task returns its exact times. False: approximate times."""
    sees_claims: bool = True
    """Claims are known to the store. False: to their claimant alone; a key's first task counts as claimed."""

    keeps_outcomes: bool = True
    """It keeps the outcomes of tasks, see `intervalq.tasks.store.Keeping`."""
    tells_outcomes: bool = True
    """It tells those who wait for outcomes, see `intervalq.tasks.store.Telling`."""
    follows_up: bool = True
    """It has batches with a follow-up, see `intervalq.tasks.store.Following`."""
    shares_keys: bool = True
    """Several tasks of a key may run at a time, see `intervalq.tasks.store.SharingKeys`."""

    def comparable(self, rows: Sequence[Row]) -> list[Row]:
        """The parts of rows that two looks at the same tasks must agree on."""
        if self.tells_times:
            return list(rows)
        return [row._replace(at=0, created=0, modified=0) for row in rows]

    @pytest.fixture
    def store(self, portal: BlockingPortal, store_url: str) -> Iterator[TaskStore]:
        """The store under test."""
        store = open_task_store(store_url)
        yield store
        portal.call(store.aclose)

    @pytest.fixture
    def names(self, portal: BlockingPortal, store: TaskStore) -> Iterator[Names]:
        """Provides names, and removes what was created under them at the end."""
        names = Names()
        yield names
        portal.call(names.clean, store)


def insert(queue: str, value: object = None, id: str | None = None, **fields: Any) -> Insert:  # noqa: A002 - as Insert has them
    """A task to insert, ready at once."""
    return Insert(queue=queue, json=json.dumps(value), id=id or f"t-{secrets.token_hex(8)}", **fields)


async def put(store: TaskStore, *inserts: Insert, session: str = "") -> tuple[Row, ...]:
    """Insert tasks."""
    return (await store.apply(Modify(session=session, inserts=inserts))).inserted


async def claim(store: TaskStore, session: str, *queues: str, limit: int = 1) -> tuple[Row, ...]:
    """Claim tasks and mark them as begun."""
    return (await store.apply(Work(session, queues=queues, limit=limit, begins=2))).claimed


async def at_once(jobs: Sequence[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """Run all of them concurrently, each to its end."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(job)


async def on_its_own(store_url: str, job: Callable[[TaskStore], Awaitable[A]]) -> A:
    """Run a function with a handle, and so with connections, of its own."""
    store = open_task_store(store_url)
    try:
        return await job(store)
    finally:
        with anyio.CancelScope(shield=True), suppress(OSError):
            await store.aclose()


async def value_of(store: TaskStore, id: str) -> Any:  # noqa: A002, ANN401 - any JSON
    """The value of a task."""
    (row,) = await store.apply(Select(ids=(id,)))
    return json.loads(row.json)


async def refused(store: TaskStore, command: Command[Any], kind: type[A]) -> A:
    """The error that a command raises."""
    try:
        await store.apply(command)
    except Exception as error:  # noqa: BLE001 - its type is checked below
        assert isinstance(error, kind), f"{command} raised {error!r}"  # noqa: PT017 - the caller examines it
        return error
    raise AssertionError(f"{command} was not refused")

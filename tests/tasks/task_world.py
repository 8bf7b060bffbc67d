"""A table of tasks under the rules, and a clock that a test sets."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from intervalq.errors import DependencyError
from intervalq.tasks import rules
from intervalq.tasks.rules import (
    SECOND,
    Begin,
    Change,
    Command,
    Delete,
    Insert,
    Modified,
    Modify,
    Row,
    Select,
    Session,
    Work,
    Worked,
)
from intervalq_stores.memory._task_table import MemoryTable

A = TypeVar("A")


class World:
    """A table, and a clock that stands still."""

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.now = 1_000 * SECOND
        for session in ("me", "you"):
            self.begin(session)

    def do(self, command: Command[A]) -> A:
        return rules.apply(self.table, command, self.now)

    def begin(self, session: str, **fields: Any) -> None:
        self.do(Begin(Session(session, **{"host": "h", "pid": 7, **fields})))

    def put(self, *ids: str, queue: str = "q", **fields: Any) -> Modified:
        return self.do(Modify(inserts=tuple(Insert(queue, f'"{id_}"', id_, **fields) for id_ in ids)))

    def claim(self, session: str = "me", limit: int = 1, queue: str = "q", **fields: Any) -> tuple[Row, ...]:
        return self.do(Work(session, queues=(queue,), limit=limit, **{"begins": 2, **fields})).claimed

    def settle(self, *parts: Delete | Change, session: str = "me") -> Worked:
        return self.do(Work(session, settled=parts))

    def row(self, id_: str) -> Row:
        return self.table.find([id_])[id_]

    def line(self, key: str = "k", queue: str = "q") -> list[str]:
        """The tasks of a key in order; waiting ones are in parentheses."""
        return [f"({row.id})" if row.waiting else row.id for row in self.table.of_key(queue, key)]

    def refused(self, command: Command[Any]) -> DependencyError:
        before = self.do(Select())
        with pytest.raises(DependencyError) as caught:
            self.do(command)
        assert self.do(Select()) == before
        return caught.value


@pytest.fixture
def world() -> World:
    return World()

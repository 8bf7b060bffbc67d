"""What the rules of tasks need of a store: rows found, kept and removed, in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from intervalq.tasks._spec.commands import Count, Select
from intervalq.tasks._spec.row import Mark, QueueStats, Row, Session


class Table(Protocol):
    """What the rules read and write. All within one transaction, and one at a time."""

    def find(self, ids: Iterable[str]) -> dict[str, Row]:
        """Those of the tasks that exist."""
        ...

    def put(self, rows: Sequence[Row]) -> None:
        """Keep rows, new ones or others of the same id."""
        ...

    def remove(self, rows: Sequence[Row]) -> None:
        """Remove tasks."""
        ...

    def ready(self, queue: str, now: int, limit: int) -> list[Row]:
        """As many tasks with `ready <= now` as there are, `limit` at most, mostly the first ones.

        Which ones is left to chance so far that a few tasks which are never done don't hold up the others.
        """
        ...

    def next_ready(self, queue: str, now: int) -> int | None:
        """The least `ready` after `now`."""
        ...

    def of_key(self, queue: str, key: str) -> list[Row]:
        """The tasks of a key, by place. There may be very many: see the next two."""
        ...

    def ends_of_key(self, queue: str, key: str) -> tuple[Row, Row] | None:
        """The first and the last task of a key, by place; None: there is none."""
        ...

    def count_of_key(self, queue: str, key: str, most: int) -> int:
        """How many tasks of a key there are; `most`, if there are more."""
        ...

    def of_session(self, session: str) -> list[Row]:
        """The tasks that a session has claimed, by id."""
        ...

    def mark(self, queue: str, key: str) -> Mark | None:
        """Who has a dedupe key."""
        ...

    def put_mark(self, mark: Mark) -> None:
        """Keep a mark."""
        ...

    def sweep_marks(self, now: int) -> None:
        """Forget some of the marks with `until <= now`."""
        ...

    def session(self, session: str) -> Session | None:
        """A session, if it lives."""
        ...

    def put_session(self, session: Session) -> None:
        """Keep a session."""
        ...

    def remove_session(self, session: str) -> None:
        """Forget a session."""
        ...

    def sessions(self) -> list[Session]:
        """All sessions, by start and id."""
        ...

    def select(self, command: Select) -> list[Row]:
        """See `Select`."""
        ...

    def count(self, command: Count, now: int) -> list[QueueStats]:
        """See `Count`."""
        ...

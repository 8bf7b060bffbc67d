"""What the rules of tasks need from a store: to find, keep and remove rows in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from intervalq.tasks._spec.commands import Count, Outcomes, Select
from intervalq.tasks._spec.row import LockRow, Mark, OutcomeRow, QueueStats, Row, Session


class Table(Protocol):
    """The data that the rules read and write, all within one transaction; transactions don't overlap."""

    def find(self, ids: Iterable[str]) -> dict[str, Row]:
        """The tasks with these ids that exist."""
        ...

    def put(self, rows: Sequence[Row]) -> None:
        """Insert rows, or replace those with the same ids."""
        ...

    def remove(self, rows: Sequence[Row]) -> None:
        """Remove tasks."""
        ...

    def ready(self, queue: str, now: int, limit: int) -> list[Row]:
        """All tasks with `ready <= now`, but at most `limit`: the first ones by `order.rank`, in this order.

        Up to `order.skippable` of the first ones are skipped at random, so that a few tasks that never end
        don't block the others. Tasks of the same priority may also come in another order.
        """
        ...

    def next_ready(self, queue: str, now: int) -> int | None:
        """The least `ready` after `now`."""
        ...

    def of_key(self, queue: str, key: str) -> list[Row]:
        """The tasks of a key, by place. There may be very many: prefer the next two methods."""
        ...

    def ends_of_key(self, queue: str, key: str) -> tuple[Row, Row] | None:
        """The first and the last task of a key, by place; None: there is none."""
        ...

    def count_of_key(self, queue: str, key: str, most: int) -> int:
        """The number of tasks of a key, but at most `most`."""
        ...

    def next_of_key(self, queue: str, key: str, first: int) -> list[Row]:
        """Those that wait among the first `first` tasks of a key, by place."""
        ...

    def of_session(self, session: str) -> list[Row]:
        """The tasks that a session has claimed, by id."""
        ...

    def mark(self, queue: str, key: str) -> Mark | None:
        """The mark of a dedupe key; None: the key is free."""
        ...

    def put_mark(self, mark: Mark) -> None:
        """Keep a mark."""
        ...

    def sweep_marks(self, now: int) -> None:
        """Forget some of the marks with `until <= now`."""
        ...

    def lock(self, name: str) -> LockRow | None:
        """A lock, if it was held in the last days."""
        ...

    def put_lock(self, lock: LockRow) -> None:
        """Keep a lock."""
        ...

    def sweep_locks(self, before: int) -> None:
        """Forget some of the locks with `until <= before`."""
        ...

    def put_outcome(self, fields: tuple[Any, ...]) -> None:
        """Add an outcome, given as the fields of its row. A task that was put back may have several."""
        ...

    def sweep_outcomes(self, now: int) -> None:
        """Drop the outcomes of a day that is over, if there are any. See `outcome.day_of`."""
        ...

    def outcomes(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Outcomes`."""
        ...

    def session(self, session: str) -> Session | None:
        """A session, if it exists."""
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

"""The stores at one URL that a service has: of tasks, of queues and schedules, of ledgers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from intervalq.errors import UnknownStore, UnsupportedOperation
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.service._actions import Actions
from intervalq.service._large import Answers
from intervalq.store import Scheduling, Store, given_url, open_store, scheduling, sound_url
from intervalq.tasks.store import Pulling, TaskStore, checked_task_store, open_task_store


@dataclass(frozen=True, slots=True)
class Stores:
    """Opened for a service. None: it has no such store."""

    tasks: TaskStore
    queues: Store | None = None
    ledgers: LedgerStore | None = None
    url: str | None = None
    """The URL of all of them, which may have secrets; None: they are where each kind is by default."""
    is_ours: bool = True
    """Whether they were opened for this service, which then closes them."""
    answers: Answers = field(default_factory=Answers)
    actions: Actions = field(default_factory=Actions)
    """What callers have changed in them."""

    @classmethod
    def opened(cls, store: str | TaskStore | None) -> Self:
        """The stores at a URL or path, which are not yet connected; or a store of tasks alone.

        Raises:
            InvalidOption, UnknownStore, MissingExtra, StoreError: as for `open_task_store`.
        """
        if store is not None and not isinstance(store, str):
            tasks = checked_task_store(store)
            return cls(tasks, is_ours=False, actions=Actions(tasks.url))
        url = given_url(store)
        if url is not None:  # a plain path is one file for all kinds
            url = sound_url(url, otherwise="sqlite")[1]
        tasks, queues = open_task_store(url), open_store(url)
        try:
            ledgers: LedgerStore | None = open_ledger_store(url)
        except UnknownStore:  # NATS has none
            ledgers = None
        return cls(tasks, queues, ledgers, url, actions=Actions(tasks.url))

    def of_tasks(self) -> TaskStore:
        """The store of tasks.

        Raises:
            UnsupportedOperation: its claims are deliveries of a server to the process that asked for them.
        """
        if isinstance(self.tasks, Pulling):
            raise UnsupportedOperation(
                self.tasks.url, "a service can't pass on tasks of NATS: use nats:// itself for these"
            )
        return self.tasks

    def of_queues(self) -> Store:
        """The store of queues.

        Raises:
            UnsupportedOperation: there is none; so for the others.
        """
        return self.queues or self._none("queues")

    def of_ledgers(self) -> LedgerStore:
        """The store of ledgers."""
        return self.ledgers or self._none("ledgers")

    def of_schedules(self) -> Scheduling:
        """The store of schedules."""
        return scheduling(self.of_queues())

    async def aclose(self) -> None:
        """Close all connections of stores that are ours."""
        for store in (self.tasks, self.queues, self.ledgers):
            if store is not None and self.is_ours:
                await store.aclose()

    def _none(self, what: str) -> Any:  # noqa: ANN401 - it never returns
        raise UnsupportedOperation(self.tasks.url, f"this service has no store of {what}")

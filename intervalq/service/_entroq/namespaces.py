"""Namespaces of docs in a store: lists, claims of all docs of a key, changes, and numbers. See `docs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from intervalq.errors import DependencyError, UnsupportedOperation
from intervalq.service._entroq.docs import claim_of, is_doc, is_held, keys_of
from intervalq.service._large import MAX_LIST, PAGE, Answers, away
from intervalq.service._refusal import Code, Refusal
from intervalq.tasks._claim.values import MAX_BYTES
from intervalq.tasks._spec.ids import DOCS
from intervalq.tasks.rules import (
    Change,
    Count,
    Delete,
    Depend,
    Insert,
    Modified,
    Modify,
    QueueStats,
    Row,
    Select,
)
from intervalq.tasks.store import MAX_ROWS, Pulling, TaskStore

MAX_DOCS: Final = 50_000
"""The maximum number of docs of a namespace whose keys are looked at: each takes a kilobyte meanwhile."""
MANY: Final = MAX_LIST // MAX_BYTES
"""So many docs fit into an answer, however large they are."""
_TRIES: Final = 20
"""How often a claim looks again because docs have changed since."""


class Namespaces:
    """The docs in a store."""

    def __init__(self, store: TaskStore, answers: Answers, clock: Callable[[], int]) -> None:
        self._store, self._answers, self._clock = store, answers, clock

    async def of_ids(self, queue: str, ids: tuple[str, ...], values: bool) -> list[Row]:
        """The docs of a namespace with these ids of rows, in their order.

        Raises:
            Refusal: they are too large together.
        """
        rows = await self._answers.list_of(self._here(), Select(ids=ids, values=values))
        return [row for row in rows if row.queue == queue]  # not what somebody has moved as a task

    async def of_keys(self, queue: str, wanted: Callable[[str], bool], limit: int, values: bool) -> list[Row]:
        """The docs of a namespace with such keys, by key and secondary key.

        Raises:
            Refusal: there are too many in the namespace, or these are too large together.
        """
        store = self._here()
        # What fits into a page is read at once, with its contents.
        rows = await store.apply(Select(queue=queue, limit=PAGE + 1, values=values))
        is_all = len(rows) <= PAGE
        if not is_all:
            rows = await store.apply(Select(queue=queue, limit=MAX_DOCS + 1, values=False))
            if len(rows) > MAX_DOCS:
                raise Refusal(
                    Code.RESOURCE_EXHAUSTED,
                    f"this namespace has more than {MAX_DOCS:,} docs, too many to look through: give ids",
                )
        picked = await away(not is_all, _picked, rows, wanted, limit)
        if is_all or not values:
            return picked
        return await self.of_ids(queue, tuple([row.id for row in picked]), values=True)

    async def claim(self, queue: str, key: str, claimant: str, lease: int) -> list[Row]:
        """Claim all docs of a key.

        Raises:
            DependencyError: another claimant has some of them; none was claimed.
            Refusal: they are too many, too large together, or change all the time.
        """
        for _ in range(_TRIES):
            docs = await self.of_keys(queue, lambda one: one == key, MAX_ROWS + 1, values=False)
            now = self._clock()
            if held := tuple([row.id for row in docs if is_held(row, claimant, now)]):
                raise DependencyError(claims=held)
            if not docs:
                return []
            if len(docs) > MAX_ROWS:
                raise Refusal(Code.RESOURCE_EXHAUSTED, f"more than {MAX_ROWS} docs have this key")
            if len(docs) > MANY:  # they may be too large for an answer, and are not claimed then
                await self.of_ids(queue, tuple([row.id for row in docs]), values=True)
            changes = tuple([claim_of(Change(row.id, row.version), lease, claimant) for row in docs])
            try:
                return [*(await self._store.apply(Modify(changes=changes))).changed]
            except DependencyError:  # they have changed since
                continue
        raise Refusal(Code.UNAVAILABLE, "the docs of this key change all the time: ask again")

    async def stats(self, names: tuple[str, ...], prefixes: tuple[str, ...]) -> list[QueueStats]:
        """The numbers of namespaces with one of these names or prefixes; none given: of all."""
        if not names and not prefixes:
            prefixes = ("",)
        queues, begins = tuple([DOCS + one for one in names]), tuple([DOCS + one for one in prefixes])
        return [*await self._here().apply(Count(queues, begins))]

    async def modify(self, command: Modify, claimant: str) -> Modified:
        """Do a change. What another claimant has is refused.

        Raises:
            DependencyError: a part can't be done; nothing was done.
        """
        others: tuple[Insert | Depend, ...] = (*command.inserts, *command.depends)
        if any(is_doc(one.id) for one in others):
            self._here()
        every: tuple[Change | Delete, ...] = (*command.changes, *command.deletes)
        parts = [one for one in every if is_doc(one.id)]
        if not parts:
            return await self._store.apply(command)
        ids = tuple([one.id for one in parts])
        now = self._clock()
        rows = {row.id: row for row in await self._here().apply(Select(ids=ids, values=False))}
        held = {
            one.id
            for one in parts
            if (row := rows.get(one.id)) and row.version == one.version and is_held(row, claimant, now)
        }
        if not held:
            return await self._store.apply(command)
        # So that the store says what else can't be done: no task has this version.
        changes = tuple([replace(one, version=-1) if one.id in held else one for one in command.changes])
        deletes = tuple([one._replace(version=-1) if one.id in held else one for one in command.deletes])
        try:
            return await self._store.apply(replace(command, changes=changes, deletes=deletes))
        except DependencyError as error:
            raise DependencyError(
                inserts=error.inserts,
                changes=tuple([one for one in error.changes if one not in held]),
                deletes=tuple([one for one in error.deletes if one not in held]),
                depends=error.depends,
                claims=(*error.claims, *sorted(held)),
            ) from error

    def _here(self) -> TaskStore:
        """The store.

        Raises:
            UnsupportedOperation: it has no docs.
        """
        if isinstance(self._store, Pulling):
            raise UnsupportedOperation(self._store.url, "a service has no docs on NATS: use another store")
        return self._store


def _picked(rows: Sequence[Row], wanted: Callable[[str], bool], limit: int) -> list[Row]:
    """The first of the docs with such keys."""
    found = [(keys_of(row), row.id, row) for row in rows]
    return [row for keys, _, row in sorted(found) if wanted(keys[0])][:limit]

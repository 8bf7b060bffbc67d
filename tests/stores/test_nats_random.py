"""Random commands of several sessions of tasks on NATS, compared with a model."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

import anyio
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Change,
    Delete,
    Depend,
    End,
    Insert,
    Modify,
    Row,
    Select,
)
from intervalq_stores.nats.tasks import NATSTaskStore
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, settled

store = nats_sessions.store


opened = nats_sessions.opened


@dataclass
class Model:
    """The expected state: tasks by place, who has claimed which, and the order of each key's tasks."""

    plain: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    lines: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, str] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    held: dict[str, str] = field(default_factory=dict)
    resting: set[str] = field(default_factory=set)

    def home(self, id_: str) -> tuple[str, str | None]:
        for queue, ids in self.plain.items():
            if id_ in ids:
                return queue, None
        return next(name for name, line in self.lines.items() if id_ in line)

    def insert(self, queue: str, key: str | None, id_: str) -> None:
        self.plain[queue].add(id_) if key is None else self.lines[queue, key].append(id_)

    def remove(self, id_: str) -> None:
        queue, key = self.home(id_)
        self.plain[queue].remove(id_) if key is None else self.lines[queue, key].remove(id_)
        self.held.pop(id_, None)
        self.resting.discard(id_)

    def free(self, queue: str) -> set[str]:
        """The tasks that can be claimed."""
        firsts = {line[0] for (name, _), line in self.lines.items() if name == queue and line}
        return (self.plain[queue] | firsts) - self.held.keys() - self.resting

    def in_queue(self, queue: str) -> set[str]:
        lines = [set(line) for (name, _), line in self.lines.items() if name == queue]
        return self.plain[queue].union(*lines)


class Sequence:
    """Random commands of three sessions in two processes, each compared with the model."""

    def __init__(self, stores: list[NATSTaskStore], seed: int) -> None:
        self.random = Random(seed)
        self.stores = stores
        self.queues = [f"q {secrets.token_hex(6)}" for _ in range(2)]
        self.sessions: dict[str, NATSTaskStore] = {}
        self.rows: dict[str, Row] = {}
        """Claims, as the sessions that hold them know them."""
        self.model = Model()
        self.number = 0

    async def run(self, steps: int) -> None:
        kinds = [
            self.insert,
            self.insert,
            self.claim,
            self.claim,
            self.settle,
            self.modify,
            self.stale,
            self.end,
        ]
        while len(self.sessions) < 3:
            await self.begin()
        for _ in range(steps):
            await self.random.choice(kinds)()
            for queue in self.queues:
                await self.look(queue)

    async def begin(self) -> None:
        store = self.random.choice(self.stores)
        self.sessions[await begun(store)] = store

    async def look(self, queue: str) -> None:
        rows = await self.random.choice(self.stores).apply(Select(queue=queue))
        assert {row.id for row in rows} == self.model.in_queue(queue)
        for (name, key), line in self.model.lines.items():
            if name == queue:
                mine = sorted((row for row in rows if row.key == key), key=lambda row: row.place)
                assert [row.id for row in mine] == line
                assert [row.waiting for row in mine] == [number > 0 for number in range(len(line))]
        for row in rows:
            assert row.json == self.model.values[row.id]
            if row.session is None and row.id not in self.model.held:
                assert row.attempt == self.model.attempts[row.id]

    def fresh(self) -> Insert:
        self.number += 1
        id_ = f"t{self.number}"
        self.model.values[id_] = str(self.number)
        return Insert(
            queue=self.random.choice(self.queues),
            json=str(self.number),
            id=id_,
            key=self.random.choice((None, "k", "ü.*")),
            delay=self.random.choice((0, 0, 0, 0, 3600 * SECOND)),
            inbox=self.random.choice((None, None, 2)),
            replace=self.random.random() < 0.2,
        )

    def entered(self, insert: Insert) -> None:
        if insert.key is not None and insert.replace:
            for id_ in self.model.lines[insert.queue, insert.key][1:]:
                self.model.remove(id_)
        self.model.insert(insert.queue, insert.key, insert.id)
        if insert.delay:
            self.model.resting.add(insert.id)

    def fits(self, insert: Insert) -> bool:
        line = self.model.lines[insert.queue, insert.key or ""]
        return insert.key is None or insert.replace or insert.inbox is None or len(line) <= insert.inbox

    async def insert(self) -> None:
        insert = self.fresh()
        command = Modify(inserts=(insert,))
        store = self.random.choice(self.stores)
        if not self.fits(insert):
            with pytest.raises(errors.InboxFull):
                await store.apply(command)
            return
        (row,) = (await store.apply(command)).inserted
        self.entered(insert)
        line = self.model.lines[insert.queue, insert.key or ""]
        assert row.waiting == (insert.key is not None and line[0] != insert.id)
        (seen,) = await store.apply(Select(queue=insert.queue, ids=(insert.id,)))
        assert (seen.version, seen.place, seen.waiting) == (row.version, row.place, row.waiting)

    async def claim(self) -> None:
        session = self.random.choice(list(self.sessions))
        queues = self.random.choice((self.queues, self.queues[:1]))
        limit = self.random.choice((1, 2, 9))
        free = {queue: self.model.free(queue) for queue in queues}
        there = set().union(*free.values())
        rows: list[Row] = []
        with anyio.fail_after(30):
            while True:  # the server tells its consumers a moment after it answers the insert
                rows += await claim(self.sessions[session], session, *queues, limit=limit - len(rows))
                if len(rows) >= min(limit, len(there)):
                    break
        assert {row.id for row in rows} <= there
        assert len(rows) == min(limit, len(there))
        for row in rows:
            assert row.session == session
            self.model.attempts[row.id] += 1
            assert row.attempt == self.model.attempts[row.id]
            self.model.held[row.id] = session
            self.rows[row.id] = row

    def mine(self, session: str) -> list[Row]:
        return [self.rows[id_] for id_, whose in self.model.held.items() if whose == session]

    async def settle(self) -> None:
        session = self.random.choice(list(self.sessions))
        mine = self.mine(session)
        some = self.random.sample(mine, min(len(mine), self.random.choice((1, 2, 9))))
        parts: list[Delete | Change] = []
        for row in some:
            kind = self.random.choice(("done", "done", "again", "later", "moves"))
            if kind == "done":
                parts.append(Delete(row.id, row.version))
                self.model.remove(row.id)
                continue
            self.model.values[row.id] = value = f'"{kind}"'
            self.model.held.pop(row.id)
            if kind == "moves":
                (other,) = set(self.queues) - {row.queue}
                parts.append(Change(row.id, row.version, queue=other, json=value))
                self.model.remove(row.id)
                self.model.insert(other, row.key, row.id)
            else:
                parts.append(Change(row.id, row.version, json=value, delay=(kind == "later") * 3600 * SECOND))
                self.model.resting |= {row.id} if kind == "later" else set()
        assert await settled(self.sessions[session], session, *parts) == ()

    async def stale(self) -> None:
        """A task that another session has claimed, now or earlier, is not settled."""
        session = self.random.choice(list(self.sessions))
        others = [row for id_, row in self.rows.items() if self.model.held.get(id_) != session]
        some = self.random.sample(others, min(3, len(others)))
        lost = await settled(self.sessions[session], session, *done(*some))
        assert sorted(lost) == sorted(row.id for row in some)

    async def modify(self) -> None:
        """Several changes of tasks that nobody has claimed, all or nothing."""
        store = self.random.choice(self.stores)
        rows = [
            row
            for queue in self.queues
            for row in await store.apply(Select(queue=queue))
            if row.id not in self.model.held
        ]
        some = self.random.sample(rows, min(len(rows), 3))
        wrong = self.random.random() < 0.3 and bool(some)
        inserts = [self.fresh()]
        changes = [Change(row.id, row.version, json='"changed"') for row in some[:1]]
        deletes = [Delete(row.id, row.version) for row in some[1:2]]
        depends = [Depend(row.id, row.version + wrong) for row in some[2:]]
        if wrong and not depends:
            changes = [Change(changes[0].id, changes[0].version + 1, json='"never"')]
        trial = Model(
            defaultdict(set, {name: set(ids) for name, ids in self.model.plain.items()}),
            defaultdict(list, {name: list(line) for name, line in self.model.lines.items()}),
            self.model.values,
            self.model.attempts,
            dict(self.model.held),
            set(self.model.resting),
        )
        before, self.model = self.model, trial
        for delete in deletes:
            self.model.remove(delete.id)
        fits = self.fits(inserts[0])
        command = Modify(
            inserts=tuple(inserts), changes=tuple(changes), deletes=tuple(deletes), depends=tuple(depends)
        )
        if wrong or not fits:
            self.model = before
            with pytest.raises((errors.DependencyError, errors.InboxFull)):
                await store.apply(command)
            return
        answer = await store.apply(command)
        self.entered(inserts[0])
        for change in changes:
            self.model.values[change.id] = str(change.json)
        reported = [*answer.inserted, *(row for row in answer.changed if row.id not in self.model.resting)]
        for row in reported:
            if row.id in self.model.in_queue(row.queue):
                (seen,) = await store.apply(Select(queue=row.queue, ids=(row.id,)))
                assert (seen.version, seen.place, seen.waiting) == (row.version, row.place, row.waiting)

    async def end(self) -> None:
        session, store = self.random.choice(list(self.sessions.items()))
        for row in self.mine(session):
            self.model.attempts[row.id] -= 1
            del self.model.held[row.id]
        await store.apply(End(session))
        del self.sessions[session]
        await self.begin()


@pytest.mark.parametrize("seed", range(6))
async def test_tasks_are_where_a_model_has_them(opened: Open, seed: int) -> None:
    await Sequence([opened(), opened()], seed).run(60)

"""Random commands for a task store, as workers in trouble would send them, at instants that matter."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from intervalq.tasks.rules import (
    CANCELLED,
    DAY,
    DONE,
    FAILED,
    SECOND,
    Beat,
    Begin,
    Cancel,
    Change,
    Command,
    Count,
    Delete,
    Depend,
    End,
    Insert,
    Kept,
    Modify,
    Outcomes,
    Row,
    Select,
    Session,
    Sessions,
    Work,
)
from intervalq.testing._tasks.model import ModelTable

_VALUES = ("null", "1", '"ü\\u0000"', '{"b": [1, 2.5, {}], "a": "x\\ny"}', "[]", "12345678901234567890")
_KEYS = ("k", "K", "a key, ü")
_SPANS = (0, 1, 2, 10, 50)
_PROGRESS = ("", '{"p":0.5}', '{"n":"ü"}')
_KEEPS = (0, 0, 0, 10, DAY)
_PER_KEY = ((1,), (1,), (2, 3), (1, 1, 2, 3))
"""What `concurrency_per_key` may be for the tasks of one sequence."""
_PRIORITIES = ((0,), (0, 0, 1, -1), (-9, -2, -1, 0, 0, 1, 2, 9))
"""What `priority` may be for the tasks of one sequence."""


class TaskCommandSource:
    """Generates commands and instants from one seed, using the model to find what matters.

    The time is many years ago, so that sessions of other users of the same store aren't taken for lapsed
    ones. All names begin with a word of its own, and ids are those of the word, too: outcomes stay in the
    store for a day, and a sequence of the same seed must not find those of an earlier one.
    """

    def __init__(
        self,
        seed: int,
        word: str,
        *,
        keeps: bool = True,
        shares: bool = True,
        follows: bool = True,
        start: int = 1_000_000_000 * SECOND,
    ) -> None:
        """Begin; `keeps`, `shares` and `follows` say what the store can do, as in its suite."""
        self.random = Random(seed)  # noqa: S311 - repeatable on purpose
        self.now = start
        self.dead = f"{word}-a.dead"
        self.queues = (f"{word}-a", f"{word}/map/B=", f"{word}/map/B=/c")
        self.word = word
        self._end_of_ids = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())
        self.sessions = tuple(f"{word}-s{number}" for number in range(4))
        self._priorities = self.random.choice(_PRIORITIES)
        self._keeps = keeps
        self._per_key = self.random.choice(_PER_KEY) if shares else (1,)
        self._follows = follows
        self._number = 0
        self._gone: list[str] = []

    def next(self, model: ModelTable) -> tuple[Command[Any], int]:
        """A command, and the store's clock when it arrives."""
        self.now += self._step(model)
        kinds: list[tuple[float, Callable[[ModelTable], Command[Any]]]] = [
            (8, self._modify),
            (9, self._work),
            (1, self._cancel),
            (1.5, self._begin),
            (1.5, self._beat),
            (0.5, lambda _: End(self._session())),
        ]
        make = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        return make(model), self.now

    def looks(self, model: ModelTable) -> list[Command[Any]]:
        """What to compare after each command: looks at tasks, queues and sessions."""
        ids = list({*self._some(model.rows, 4), *self._some(self._gone, 1)})
        ids.sort()
        self.random.shuffle(ids)
        limit = self.random.choice((None, None, 1, 2))
        values = self.random.random() < 0.5
        looks: list[Command[Any]] = [Select(queue=queue) for queue in (*self.queues, self.dead)]
        looks.append(Count(names=self.queues[:1], prefixes=(self.queues[1],)))
        looks.append(self.random.choice((Count(prefixes=(self.word,), limit=limit), Sessions())))
        if self._keeps:
            state = self.random.choice((None, DONE, FAILED, CANCELLED))
            looks.append(Outcomes(queue=self.random.choice(self.queues), state=state))
            looks.append(Outcomes(ids=tuple(self._some(self._gone, 4)), queue=self.queues[0]))
            looks.append(Outcomes(ids=tuple(self._some(self._gone, 4) or self._gone[:1] or ("none",))))
        if ids:
            queue = self.random.choice((None, None, None, *self.queues))
            looks.append(Select(ids=tuple(ids), limit=limit, values=values, queue=queue))
        looks.append(Select(session=self._session(), queue=self.random.choice((None, self.queues[0]))))
        return looks

    def _step(self, model: ModelTable) -> int:
        """How far the clock moves: mostly not at all, or to about an instant that matters."""
        choice = self.random.random()
        if choice < 0.4:
            return self.random.choice((0, 0, 1))
        if choice < 0.5:
            return self.random.randint(0, 100)
        limits = [row.ready for row in model.rows.values() if row.ready is not None]
        limits += [session.beaten + session.expiry for session in model.living.values()]
        limits += [mark.until for mark in model.marks.values() if mark.until is not None]
        limits = [limit for limit in limits if limit >= self.now]
        if not limits:
            return 1
        return max(0, self.random.choice(limits) - self.now + self.random.choice((-1, 0, 0, 1)))

    # --- parts --------------------------------------------------------------------------------------

    def _session(self) -> str:
        return self.random.choice(self.sessions)

    def _some(self, things: Iterable[str], most: int) -> list[str]:
        there = sorted(things)
        return self.random.sample(there, min(len(there), self.random.randint(0, most)))

    def _id(self, model: ModelTable) -> str:
        choice = self.random.random()
        if choice < 0.1 and model.rows:
            return self.random.choice(sorted(model.rows))  # it exists
        if choice < 0.15 and self._gone:
            return self.random.choice(self._gone)  # it may have existed
        if choice < 0.2 and model.rows:
            return self.random.choice(sorted(model.rows)).swapcase()  # a different id that only looks alike
        self._number += 1
        own = f"{self.word}-{self._number} ü"
        # Its end is that of the word: the order of ids is always the same, and decides what comes next.
        made = str(uuid.UUID(int=self.random.getrandbits(128) >> 48 << 48 | self._end_of_ids, version=4))
        new = self.random.choice((own, made, made))
        self._gone.append(new)
        return new

    def _insert(self, model: ModelTable) -> Insert:
        key = self.random.choice((None, None, None, *_KEYS))
        return Insert(
            queue=self.random.choice(self.queues),
            json=self.random.choice(_VALUES),
            id=self._id(model),
            key=key,
            at=self.random.choice((None, None, None, self.now - 7, self.now, self.now + 10)),
            delay=self.random.choice((0, 0, 0, *_SPANS)),
            attempt=self.random.choice((0, 0, 3)),
            error=self.random.choice(("", "", "it\nfailed: ü")),
            skip=self.random.random() < 0.25,
            dedupe=self.random.choice((None, None, None, "d", "D")),
            dedupe_for=self.random.choice(_SPANS),
            inbox=None if key is None else self.random.choice((None, None, 0, 1, 2)),
            replace=key is not None and self.random.random() < 0.2,
            priority=self.random.choice(self._priorities),
            keep_for=self.random.choice(_KEEPS) if self._keeps else 0,
            per_key=1 if key is None or self._per_key == (1,) else self.random.choice(self._per_key),
        )

    def _batch(self, last: Insert, *others: Insert) -> list[Insert]:
        """Some wait for others; a few of these are left out, or are never there."""
        last = last._replace(key=None, inbox=None, replace=False, per_key=1)
        awaits = max(0, len(others) + self.random.choice((-1, 0, 0, 0, 1)))
        return [last._replace(awaits=awaits), *(part._replace(follow_up=last.id) for part in others)]

    def _kept(self) -> Kept | None:
        if not self._keeps or self.random.random() < 0.5:
            return None
        result = self.random.choice(("", "null", '"\u00fc \\u0000"', '{"a": " 1"}'))
        return Kept(self.random.choice(_KEEPS), result, self.random.choice((0, 7)))

    def _version(self, row: Row) -> int:
        off = self.random.choice((-1, 1, -row.version)) if self.random.random() < 0.06 else 0
        return row.version + off

    def _change(self, row: Row) -> Change:
        maybe = self.random.random
        return Change(
            id=row.id,
            version=self._version(row),
            queue=self.random.choice((*self.queues, self.dead)) if maybe() < 0.35 else None,
            json=self.random.choice(_VALUES) if maybe() < 0.3 else None,
            at=self.now + self.random.choice((-5, 0, 5)) if maybe() < 0.3 else None,
            delay=self.random.choice(_SPANS) if maybe() < 0.3 else None,
            attempt=self.random.randint(0, 5) if maybe() < 0.3 else None,
            error=self.random.choice(("", "worse")) if maybe() < 0.3 else None,
            keep=maybe() < (0.5 if row.session is not None else 0.1),
            lease=self.random.choice((None, *_SPANS)),
            progress=self.random.choice(_PROGRESS) if maybe() < 0.3 else None,
            priority=self.random.choice(self._priorities) if maybe() < 0.3 else None,
            kept=self._kept(),
        )

    # --- commands -----------------------------------------------------------------------------------

    def _modify(self, model: ModelTable) -> Modify:
        inserts = [self._insert(model) for _ in range(self.random.choice((0, 0, 1, 1, 2, 4)))]
        inserts = list({insert.id: insert for insert in inserts}.values())
        if self._follows and len(inserts) > 1 and self.random.random() < 0.4:
            inserts = self._batch(*inserts)
        taken = {insert.id for insert in inserts}
        named = [id_ for id_ in self._some(model.rows, 4) if id_ not in taken]
        mine: str | None = None
        if self.random.random() < 0.7:  # mostly a command that isn't refused because of claims
            mine = next((row.session for row in map(model.rows.get, named) if row and row.session), None)
            named = [id_ for id_ in named if model.rows[id_].session in (None, mine)]
        changes: list[Change] = []
        deletes: list[Delete] = []
        depends: list[Depend] = []
        for id_ in named:
            row = model.rows[id_]
            kind = self.random.random()
            if kind < 0.45:
                changes.append(self._change(row))
            elif kind < 0.85:
                deletes.append(Delete(id_, self._version(row), self._kept()))
            else:
                depends.append(Depend(id_, self._version(row)))
        if self.random.random() < 0.05:
            missing = f"{self.word} never there"
            changes += [Change(missing, 0)] * self.random.randint(0, 1)
            deletes += [Delete(missing, 0)] * (not changes or changes[-1].id != missing)
        return Modify(
            session=mine or self.random.choice(("", self._session())),
            inserts=tuple(inserts),
            changes=tuple(changes),
            deletes=tuple(deletes),
            depends=tuple(depends),
            force=self.random.random() < 0.05,
        )

    def _work(self, model: ModelTable) -> Work:
        living = sorted(model.living)
        session = self.random.choice(living) if living and self.random.random() < 0.95 else self._session()
        settled: list[Delete | Change] = []
        held = [row.id for row in model.rows.values() if row.session == session]
        for id_ in {*self._some(held, 5), *self._some(model.rows, 1 if self.random.random() < 0.1 else 0)}:
            row = model.rows[id_]
            settled.append(
                Delete(id_, self._version(row), self._kept())
                if self.random.random() < 0.5
                else self._change(row)
            )
        settled.sort(key=lambda part: part.id)
        self.random.shuffle(settled)
        known = model.living.get(session)
        most = self.random.choice((None, 0, 1, 2, 3)) if known is not None and known.consumer else None
        return Work(
            session=session,
            settled=tuple(settled),
            queues=tuple(self._some(self.queues, 3)),
            limit=self.random.choice((0, 1, 1, 2, 3, 5, 1000)),
            lease=self.random.choice((None, None, *_SPANS)),
            most=most,
            idle=self.random.random() < 0.3,
            begun=tuple(self._some([*held, *held, *model.rows], 3)),
            begins=self.random.choice((0, 0, 1, 2)),
        )

    def _cancel(self, model: ModelTable) -> Cancel:
        held = [row.id for row in model.rows.values() if row.session is not None]
        ids = self._some([*held, *held, *model.rows, *self._gone[-1:]], 3)
        return Cancel(tuple(ids))

    def _begin(self, _: ModelTable) -> Begin:
        return Begin(
            Session(
                id=self._session(),
                host="hüst",
                pid=self.random.randint(1, 99),
                consumer=self.random.choice(("", f"{self.word}-consumer")),
                expiry=self.random.choice((1, 10, 100, 1000)),
                started=3,
                beaten=4,
            )
        )

    def _beat(self, _: ModelTable) -> Beat:
        return Beat(self._session())

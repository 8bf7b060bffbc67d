from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Change,
    Count,
    Delete,
    Depend,
    End,
    Insert,
    Modify,
    QueueStats,
    Row,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import Locking, Pulling, Ranging, Transactional
from intervalq.testing import TaskSuite, WakingTaskSuite
from intervalq_stores.nats_tasks import NATSTaskStore


class TestNATSTaskStore(TaskSuite):
    left_out = (WakingTaskSuite,)  # it wakes by bringing the task
    counts_versions = False  # they are the stream's sequences
    tells_times = False  # an acknowledgement has no time
    sees_claims = False

    @pytest.fixture
    def store_url(self, nats_url: str) -> str:
        return nats_url

    # The clock is the server's, whatever `now` says.
    test_every_answer_is_that_of_the_rules = None  # type: ignore[assignment]
    # What others have claimed can be changed: they find that their claim has no effect.
    test_everything_that_failed_is_listed_and_nothing_is_done = None  # type: ignore[assignment]
    test_each_kind_of_failure_by_itself_undoes_the_rest = None  # type: ignore[assignment]
    test_a_claim_that_was_lost_settles_nothing = None  # type: ignore[assignment]
    # Ids are those of a queue.
    test_an_id_is_taken_only_once = None  # type: ignore[assignment]
    # Nobody knows when the next task of later will be ready.
    test_a_task_goes_from_insert_to_claim = None  # type: ignore[assignment]
    # A task of long ago comes in the order of insertion, like one of now.
    test_the_first_tasks_are_claimed_before_the_last = None  # type: ignore[assignment]
    test_a_selection_is_sorted_by_arrival = None  # type: ignore[assignment]
    # Tasks behind another can't be named there.
    test_an_inbox_has_room_for_those_that_went_from_its_middle = None  # type: ignore[assignment]
    # A limit is the queue's, not the consumer's.
    test_sessions_of_a_consumer_hold_no_more_than_they_may = None  # type: ignore[assignment]
    # Each session lapses by itself.
    test_a_lapsed_session_is_removed_once = None  # type: ignore[assignment]


Open = Callable[[], NATSTaskStore]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def opened(nats_url: str) -> AsyncIterator[Open]:
    """Opens stores, each as if in a process of its own, and closes them at the end."""
    stores: list[NATSTaskStore] = []

    def open_one() -> NATSTaskStore:
        stores.append(NATSTaskStore(nats_url))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


@pytest.fixture
def store(opened: Open) -> NATSTaskStore:
    return opened()


@pytest.fixture
def queue() -> str:
    return f"q {secrets.token_hex(6)}"


def inserts(queue: str, *ids: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert(queue, f'"{id_}"', id_, **more) for id_ in ids))


async def begun(store: NATSTaskStore, expiry: int = 60 * SECOND) -> str:
    session = secrets.token_hex(8)
    await store.apply(Begin(Session(session, expiry=expiry)))
    return session


async def claim(store: NATSTaskStore, session: str, *queues: str, limit: int = 1, **more: Any) -> list[Row]:
    return list((await store.apply(Work(session, queues=queues, limit=limit, **more))).claimed)


async def settled(store: NATSTaskStore, session: str, *parts: Delete | Change) -> tuple[str, ...]:
    """The ids of what was lost."""
    return (await store.apply(Work(session, parts))).lost


def done(*rows: Row) -> tuple[Delete, ...]:
    return tuple(Delete(row.id, row.version) for row in rows)


async def ids_in(store: NATSTaskStore, queue: str) -> list[str]:
    return sorted(row.id for row in await store.apply(Select(queue=queue)))


def test_what_it_can(nats_url: str) -> None:
    store = NATSTaskStore(nats_url)
    assert isinstance(store, Pulling)
    assert isinstance(store, Locking)
    assert not isinstance(store, Transactional | Ranging)
    assert repr(store) == f"NATSTaskStore('{nats_url}')"


async def test_tasks_come_in_the_order_of_insertion(store: NATSTaskStore, queue: str) -> None:
    session = await begun(store)
    ids = [f"t{number}" for number in range(30)]
    await store.apply(inserts(queue, *ids[:20], at=5 * SECOND))
    await store.apply(inserts(queue, *ids[20:]))
    rows = await claim(store, session, queue, limit=7)
    rows += await claim(store, session, queue, limit=100)
    assert [row.id for row in rows] == ids
    assert await settled(store, session, *done(*rows)) == ()
    assert await ids_in(store, queue) == []


async def test_an_id_is_taken_once_in_a_queue(store: NATSTaskStore, queue: str) -> None:
    await store.apply(inserts(queue, "a", "b"))
    with pytest.raises(errors.DependencyError) as caught:
        await store.apply(inserts(queue, "c", "b", "a"))
    assert sorted(caught.value.inserts) == ["a", "b"]
    assert await ids_in(store, queue) == ["a", "b"]
    modified = await store.apply(inserts(queue, "b", "c", skip=True))
    assert ([row.id for row in modified.inserted], modified.existing) == (["c"], (("b", "b"),))
    await store.apply(inserts(queue, "k", "l", key="key"))  # one has the token, and one waits
    for id_ in ("k", "l"):
        with pytest.raises(errors.DependencyError) as caught:
            await store.apply(inserts(queue, id_, key="key"))
        assert caught.value.inserts == (id_,)
        again = await store.apply(inserts(queue, id_, key="key", skip=True))
        assert again.existing == ((id_, id_),)
    assert (await store.apply(inserts(f"{queue} 2", "a"))).inserted[0].id == "a"


async def test_an_id_is_free_again_at_once(store: NATSTaskStore, queue: str) -> None:
    for number in range(3):
        (row,) = (await store.apply(inserts(queue, "a"))).inserted
        (other,) = (await store.apply(inserts(queue, f"b{number}"))).inserted
        # Together with another one, which leaves a tombstone in its place for a while.
        await store.apply(Modify(deletes=done(row, other)))
        assert await ids_in(store, queue) == []
    await store.apply(inserts(queue, "first", key="key"))
    for _ in range(2):
        (row,) = (await store.apply(inserts(queue, "second", key="key"))).inserted
        await store.apply(Modify(deletes=done(row)))
        (row,) = (await store.apply(inserts(queue, "second", "third", key="key"))).inserted[:1]
        (row, other) = await store.apply(Select(ids=("second", "third"), queue=queue))
        await store.apply(Modify(deletes=done(row, other)))
    (row,) = (await store.apply(inserts(queue, "moves"))).inserted
    for name in (f"{queue} 2", queue, f"{queue} 2", queue):
        (row,) = (await store.apply(Modify(changes=(Change(row.id, row.version, queue=name),)))).changed
    assert await ids_in(store, queue) == ["first", "moves"]


async def test_two_queues_may_have_the_same_id_claimed_here(store: NATSTaskStore, queue: str) -> None:
    """Ids are those of a queue; a session knows its claims by id, so it has one of them at a time."""
    session = await begun(store)
    queues = [queue, f"{queue} 2"]
    for name in queues:
        await store.apply(inserts(name, "a"))
    seen: list[str] = []
    with anyio.fail_after(30):
        while len(seen) < 2:
            rows = await claim(store, session, *queues, limit=2)
            assert len(rows) <= 1
            seen += [row.queue for row in rows]
            assert {row.attempt for row in rows} <= {1}
            assert await settled(store, session, *done(*rows)) == ()
    assert sorted(seen) == queues


async def test_each_kind_of_failure_undoes_the_rest(store: NATSTaskStore, queue: str) -> None:
    a, b, c, new = (f"{name} of {queue}" for name in ("a", "b", "c", "new"))
    free, other, third = (await store.apply(inserts(queue, a, b, c))).inserted
    gone = Delete("gone", free.version)
    cases: list[tuple[dict[str, Any], dict[str, tuple[str, ...]]]] = [
        ({"inserts": inserts(queue, a).inserts}, {"inserts": (a,)}),
        ({"changes": (Change(a, other.version),)}, {"changes": (a,)}),
        ({"deletes": (Delete(a, 0),)}, {"deletes": (a,)}),
        ({"deletes": (gone,)}, {"deletes": ("gone",)}),
        ({"depends": (Depend(a, free.version + 100),)}, {"depends": (a,)}),
        (
            {"changes": (Change(a, 0),), "deletes": (gone, *done(other)), "depends": (Depend(c, 1),)},
            {"changes": (a,), "deletes": ("gone",), "depends": (c,)},
        ),
    ]
    for parts, expected in cases:
        more = {**parts, "inserts": (*inserts(queue, new).inserts, *parts.get("inserts", ()))}
        with pytest.raises(errors.DependencyError) as caught:
            await store.apply(Modify(**more))
        fields = ("inserts", "changes", "deletes", "depends", "claims")
        said = {name: getattr(caught.value, name) for name in fields if getattr(caught.value, name)}
        assert said == expected
    assert await ids_in(store, queue) == [a, b, c]
    both = Modify(changes=(Change(a, free.version, json="1"),), depends=(Depend(b, other.version),))
    (after,) = (await store.apply(both)).changed
    assert (after.version > third.version, after.json) == (True, "1")
    forced = Modify(deletes=(Delete(a, 7), Delete(b, 7), Delete(c, 7)), force=True)
    await store.apply(forced)
    assert await ids_in(store, queue) == []


async def test_queues_are_counted_by_state(opened: Open, queue: str) -> None:
    """What rests isn't claimed, whether a worker was told so or not; what has gone isn't there."""
    store, other = opened(), opened()
    session = await begun(store)
    await store.apply(inserts(queue, "gone 1", "gone 2", "a"))
    await store.apply(Modify(deletes=done(*(await store.apply(Select(queue=queue)))[:2])))
    await store.apply(inserts(queue, "later 1", delay=3600 * SECOND))
    await store.apply(inserts(queue, "k 1", "k 2", "k 3", key="key"))

    async def counted(**expected: Any) -> None:
        """A moment later: consumers are told of what has gone after it has."""
        with anyio.fail_after(30):
            while await other.apply(Count(names=(queue,))) != (QueueStats(queue)._replace(**expected),):
                await anyio.lowlevel.checkpoint()

    await counted(size=5, ready=2, future=1, inbox=2)
    (row,) = await claim(store, session, queue)
    await counted(size=5, claimed=1, ready=1, future=1, inbox=2)
    (second,) = await claim(store, session, queue)
    await counted(size=5, claimed=2, future=1, inbox=2)
    await store.apply(inserts(queue, "later 2", delay=3600 * SECOND))
    await counted(size=6, claimed=2, future=2, inbox=2)
    assert await settled(store, session, *done(row, second)) == ()
    await counted(size=4, ready=1, future=2, inbox=1)


async def test_too_much_for_one_batch_is_refused(store: NATSTaskStore, queue: str) -> None:
    for key in ("a", "b"):
        await store.apply(inserts(queue, *(f"{key}{number}" for number in range(600)), key=key))
    rows = await store.apply(Select(queue=queue))
    waiting = [row for row in rows if row.waiting]
    with pytest.raises(errors.UnsupportedOperation, match="1000 at once"):
        await store.apply(Modify(deletes=done(*waiting), inserts=inserts(queue, "c").inserts))
    assert len(await store.apply(Select(queue=queue))) == 1200
    with pytest.raises(errors.UnsupportedOperation, match="keeps the claim"):
        await store.apply(Modify(changes=(Change("a0", rows[0].version, keep=True),)))


# --- claims -----------------------------------------------------------------------------------------


async def test_what_has_changed_hands_is_not_settled(opened: Open, queue: str) -> None:
    """By whom it isn't claimed, at another version, twice; and the change of another stays."""
    first, second = opened(), opened()
    mine, theirs = await begun(first), await begun(second)
    await first.apply(inserts(queue, "a", "b", "c", "d"))
    rows = {row.id: row for row in await claim(first, mine, queue, limit=4)}
    assert await settled(second, theirs, *done(*rows.values())) == ("a", "b", "c", "d")
    assert await settled(first, mine, Delete("a", rows["a"].version + 1)) == ("a",)
    # Somebody else, who can't see the claims, changes one and removes another.
    changed, removed = Change("b", rows["b"].version, json='"new"'), Delete("c", rows["c"].version)
    await second.apply(Modify(changes=(changed,), deletes=(removed,)))
    assert sorted(await settled(first, mine, *done(rows["b"], rows["c"]))) == ["b", "c"]
    assert await settled(first, mine, *done(rows["b"], rows["c"])) == ("b", "c")
    (row,) = await claim(second, theirs, queue)
    assert (row.id, row.json, row.version > rows["b"].version) == ("b", '"new"', True)
    # A change is refused where an acknowledgement has no effect.
    await first.apply(Modify(changes=(Change("d", rows["d"].version, json="1"),), force=True))
    assert await settled(first, mine, Change("d", rows["d"].version, json="2")) == ("d",)
    assert {row.id: row.json for row in await first.apply(Select(queue=queue, ids=("a", "d")))} == {
        "a": '"a"',
        "d": "1",
    }


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("verb", ["change", "move", "delete", "follow-up"])
async def test_an_acknowledgement_says_that_others_were_faster(
    opened: Open, queue: str, verb: str, key: str | None, late: bool
) -> None:
    """Whatever they did, and whether it is noticed by the acknowledgement or by a heartbeat before."""
    first, second = opened(), opened()
    mine = await begun(first, 2 * SECOND)
    await first.apply(inserts(queue, "a", "b", key=key))
    rows = await claim(first, mine, queue, limit=2)
    (row,) = (row for row in rows if row.id == "a")
    other = f"{queue} 2"
    steps = {
        "change": Modify(changes=(Change("a", row.version, json='"new"'),)),
        "move": Modify(changes=(Change("a", row.version, queue=other),)),
        "delete": Modify(deletes=(Delete("a", row.version),)),
        "follow-up": Modify(deletes=(Delete("a", row.version),), inserts=inserts(other, "c").inserts),
    }
    await second.apply(steps[verb])
    if late:
        with anyio.fail_after(30):
            while (await first.apply(Beat(mine))).held == len(rows):
                await anyio.lowlevel.checkpoint()
    there = await second.apply(Select())
    assert await settled(first, mine, Delete("a", row.version)) == ("a",)
    assert await second.apply(Select()) == there


async def test_who_is_slower_than_an_acknowledgement_is_told(opened: Open, queue: str) -> None:
    first, second = opened(), opened()
    mine = await begun(first)
    await first.apply(inserts(queue, "a"))
    await first.apply(inserts(queue, "k", key="key"))
    rows = {row.id: row for row in await claim(first, mine, queue, limit=2)}
    assert await settled(first, mine, *done(*rows.values())) == ()
    for row in rows.values():
        for command in (Modify(deletes=done(row)), Modify(changes=(Change(row.id, row.version, json="1"),))):
            with pytest.raises(errors.DependencyError):
                await second.apply(command)
    assert await ids_in(second, queue) == []


async def test_a_worker_that_is_gone_loses_its_tasks_once(opened: Open, queue: str) -> None:
    """After the ack wait others get them anew, at a new version; nobody knows of an attempt."""
    first, second = opened(), opened()
    dead, alive = await begun(first, SECOND), await begun(second, SECOND)
    await first.apply(inserts(queue, "a", "b"))
    await first.apply(inserts(queue, "k", "l", key="key"))
    before = {row.id: row for row in await claim(first, dead, queue, limit=9)}
    assert list(before) == ["a", "b", "k"]
    after: dict[str, Row] = {}
    with anyio.fail_after(30):
        while len(after) < 3:
            rows = await second.pull(Work(alive, queues=(queue,), limit=9, begins=2), 0.1)
            assert (await second.apply(Beat(alive))).alive
            after |= {row.id: row for row in rows}
    for id_, row in after.items():
        assert (row.attempt, row.claims, row.error, row.alone) == (1, 2, "", True)
        assert row.version > before[id_].version
    # Its late words have no effect: whatever they are, and whenever.
    for parts in (done(*before.values()), [Change(row.id, row.version, json="1") for row in before.values()]):
        worked = await first.apply(Work(dead, tuple(parts)))
        assert sorted(worked.lost) == ["a", "b", "k"]
    assert (await first.apply(Beat(dead))).held == 0
    assert await settled(second, alive, *done(*after.values())) == ()
    (row,) = await claim(second, alive, queue, limit=9)
    assert (row.id, row.attempt, row.claims) == ("l", 1, 1)


async def test_a_worker_that_is_gone_is_missed_whatever_others_do(opened: Open, queue: str) -> None:
    """They put their own tasks back and acknowledge, which must not hide what it had."""
    first, second = opened(), opened()
    dead, alive = await begun(first, SECOND), await begun(second, SECOND)
    await first.apply(inserts(queue, "a", "b", "c"))
    assert [row.id for row in await claim(first, dead, queue)] == ["a"]
    b, c = await claim(second, alive, queue, limit=2)
    assert await settled(second, alive, Change("b", b.version, delay=3600 * SECOND)) == ()
    assert await settled(second, alive, Delete("c", c.version)) == ()
    with anyio.fail_after(30):
        while not (rows := await second.pull(Work(alive, queues=(queue,), limit=9, begins=2), 0.1)):
            assert (await second.apply(Beat(alive))).alive
    assert [(row.id, row.attempt, row.alone) for row in rows] == [("a", 1, True)]


async def test_beats_keep_what_is_held(opened: Open, queue: str) -> None:
    """For longer than the ack wait; nobody else gets it."""
    first, second = opened(), opened()
    mine, theirs = await begun(first, SECOND), await begun(second, SECOND)
    await first.apply(inserts(queue, "a"))
    (row,) = await claim(first, mine, queue)
    others: list[Row] = []
    async with anyio.create_task_group() as group:

        async def look() -> None:
            others.extend(await second.pull(Work(theirs, queues=(queue,), limit=1), 2.5))
            group.cancel_scope.cancel()

        group.start_soon(look)
        while True:
            assert (await first.apply(Beat(mine))) == (await first.apply(Beat(mine)))
            await anyio.sleep(0.2)
    assert others == []
    assert await settled(first, mine, *done(row)) == ()


async def test_a_lease_ends_by_itself(store: NATSTaskStore, queue: str) -> None:
    session = await begun(store)
    await store.apply(inserts(queue, "a", "b"))
    rows = await claim(store, session, queue, limit=2, lease=1)
    assert all(row.until is not None for row in rows)
    assert await settled(store, session, Delete("a", rows[0].version)) == ("a",)
    beaten = await store.apply(Beat(session))
    assert (beaten.alive, beaten.held) == (True, 0)
    again: list[Row] = []
    while len(again) < 2:
        again += await store.pull(Work(session, queues=(queue,), limit=2), 1.0)
    assert {(row.id, row.attempt, row.claims) for row in again} == {("a", 2, 2), ("b", 2, 2)}
    # One that is prolonged is another version, which is what it is settled at.
    change = Change("a", next(row.version for row in again if row.id == "a"), keep=True, lease=60 * SECOND)
    assert await settled(store, session, change) == ()
    assert await settled(store, session, Delete("a", change.version)) == ("a",)
    assert await settled(store, session, Delete("a", change.version + 1)) == ()
    assert await ids_in(store, queue) == ["b"]


async def test_a_task_of_later_comes_when_its_time_has(store: NATSTaskStore, queue: str) -> None:
    """By a refusal with a delay, which isn't an attempt. Others aren't held up."""
    session = await begun(store)
    await store.apply(inserts(queue, "later", delay=300_000))
    await store.apply(inserts(queue, "never", delay=3600 * SECOND))
    await store.apply(inserts(queue, "now"))
    work = Work(session, queues=(queue,), limit=3)
    order: list[Row] = []
    with anyio.fail_after(30):
        while len(order) < 2:
            order += await store.pull(work, 1.0)
    assert [(row.id, row.attempt, row.claims) for row in order] == [("now", 1, 1), ("later", 1, 1)]
    assert await settled(store, session, Change("now", order[0].version, delay=SECOND // 10)) == ()
    with anyio.fail_after(30):
        while not (rows := await store.pull(work, 1.0)):
            pass
    assert [(row.id, row.attempt) for row in rows] == [("now", 2)]


async def test_what_came_for_somebody_who_left_is_given_back(opened: Open, queue: str) -> None:
    """A wake-up brings the task. If nobody takes it, it doesn't lie about here."""
    first, second = opened(), opened()
    mine, theirs = await begun(first), await begun(second)
    with anyio.fail_after(30):
        async with first.wakeups(mine):
            await first.apply(Work(mine, queues=(queue,), limit=1, idle=True))
            while (await second.pulled((queue,)))[queue].waiting == 0:
                await anyio.lowlevel.checkpoint()
            await second.apply(inserts(queue, "a"))
            while not await first.apply(Select(session=mine)):
                await anyio.lowlevel.checkpoint()
        (row,) = await second.pull(Work(theirs, queues=(queue,), limit=1), 20.0)
    assert (row.id, row.attempt) == ("a", 1)


# --- random sequences -------------------------------------------------------------------------------


@dataclass
class Model:
    """What should be there: tasks by place, who has which, and in what order each key has its own."""

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
        """What can be claimed."""
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
        """Claims, as their claimants have them."""
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
            while True:  # the server tells its consumers a moment later than who inserts
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
        """What is claimed elsewhere, or was, is not settled."""
        session = self.random.choice(list(self.sessions))
        others = [row for id_, row in self.rows.items() if self.model.held.get(id_) != session]
        some = self.random.sample(others, min(3, len(others)))
        lost = await settled(self.sessions[session], session, *done(*some))
        assert sorted(lost) == sorted(row.id for row in some)

    async def modify(self) -> None:
        """Several changes of what nobody has claimed, all or nothing."""
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
        told = [*answer.inserted, *(row for row in answer.changed if row.id not in self.model.resting)]
        for row in told:
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

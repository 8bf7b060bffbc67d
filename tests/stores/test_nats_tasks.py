"""Tasks on NATS: the conformance suite, ids, and changes of several tasks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from intervalq import errors
from intervalq.tasks.rules import (
    SECOND,
    Change,
    Count,
    Delete,
    Depend,
    Modify,
    QueueStats,
    Select,
)
from intervalq.tasks.store import Locking, Pulling, Ranging, Transactional
from intervalq.testing import TaskSuite, WakingTaskSuite
from intervalq_stores.nats.tasks import NATSTaskStore
from stores import nats_sessions
from stores.nats_sessions import Open, begun, claim, done, ids_in, inserts, settled

store = nats_sessions.store


opened = nats_sessions.opened


class TestNATSTaskStore(TaskSuite):
    left_out = (WakingTaskSuite,)  # a wake-up brings the task
    counts_versions = False  # versions are the stream's sequences
    tells_times = False  # an acknowledgement has no time
    sees_claims = False
    keeps_outcomes = False
    tells_outcomes = False
    shares_keys = False
    follows_up = False
    marks_cancelled = False

    @pytest.fixture
    def store_url(self, nats_url: str) -> str:
        return nats_url

    # The clock is the server's, whatever `now` says.
    test_every_answer_is_that_of_the_rules = None  # type: ignore[assignment]
    # Tasks that others have claimed can be changed; those then find that their claim has no effect.
    test_everything_that_failed_is_listed_and_nothing_is_done = None  # type: ignore[assignment]
    test_each_kind_of_failure_by_itself_undoes_the_rest = None  # type: ignore[assignment]
    test_a_claim_that_was_lost_settles_nothing = None  # type: ignore[assignment]
    # An id is unique in its queue.
    test_an_id_is_taken_only_once = None  # type: ignore[assignment]
    # When the next delayed task will be ready is unknown.
    test_a_task_goes_from_insert_to_claim = None  # type: ignore[assignment]
    # A task with a time in the distant past comes in the order of insertion, like one without a time.
    test_the_first_tasks_are_claimed_before_the_last = None  # type: ignore[assignment]
    test_a_selection_is_sorted_by_arrival = None  # type: ignore[assignment]
    # Tasks behind another can't be named there.
    test_an_inbox_has_room_for_those_that_went_from_its_middle = None  # type: ignore[assignment]
    # A limit is that of the queue, not of the consumer.
    test_sessions_of_a_consumer_hold_no_more_than_they_may = None
    # Each session lapses by itself.
    test_a_lapsed_session_is_removed_once = None  # type: ignore[assignment]


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
        # It is removed together with another one, which leaves a tombstone in its place for a while.
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
    """Ids are unique in a queue; a session knows its claims by id, so it has one of the two at a time."""
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
        reported = {name: getattr(caught.value, name) for name in fields if getattr(caught.value, name)}
        assert reported == expected
    assert await ids_in(store, queue) == [a, b, c]
    both = Modify(changes=(Change(a, free.version, json="1"),), depends=(Depend(b, other.version),))
    (after,) = (await store.apply(both)).changed
    assert (after.version > third.version, after.json) == (True, "1")
    forced = Modify(deletes=(Delete(a, 7), Delete(b, 7), Delete(c, 7)), force=True)
    await store.apply(forced)
    assert await ids_in(store, queue) == []


async def test_queues_are_counted_by_state(opened: Open, queue: str) -> None:
    """Delayed tasks aren't claimed, whether or not a worker was given them; removed tasks aren't there."""
    store, other = opened(), opened()
    session = await begun(store)
    await store.apply(inserts(queue, "gone 1", "gone 2", "a"))
    await store.apply(Modify(deletes=done(*(await store.apply(Select(queue=queue)))[:2])))
    await store.apply(inserts(queue, "later 1", delay=3600 * SECOND))
    await store.apply(inserts(queue, "k 1", "k 2", "k 3", key="key"))

    async def counted(**expected: Any) -> None:
        """The counts a moment later, because consumers learn of removals with a delay."""
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


async def test_what_has_changed_hands_is_not_settled(opened: Open, queue: str) -> None:
    """This covers a caller without the claim, another version, and a repetition; another's change stays."""
    first, second = opened(), opened()
    mine, theirs = await begun(first), await begun(second)
    await first.apply(inserts(queue, "a", "b", "c", "d"))
    rows = {row.id: row for row in await claim(first, mine, queue, limit=4)}
    assert await settled(second, theirs, *done(*rows.values())) == ("a", "b", "c", "d")
    assert await settled(first, mine, Delete("a", rows["a"].version + 1)) == ("a",)
    # Another client, which can't see the claims, changes one and removes another.
    changed, removed = Change("b", rows["b"].version, json='"new"'), Delete("c", rows["c"].version)
    await second.apply(Modify(changes=(changed,), deletes=(removed,)))
    assert sorted(await settled(first, mine, *done(rows["b"], rows["c"]))) == ["b", "c"]
    assert await settled(first, mine, *done(rows["b"], rows["c"])) == ("b", "c")
    (row,) = await claim(second, theirs, queue)
    assert (row.id, row.json, row.version > rows["b"].version) == ("b", '"new"', True)
    # A change is refused if an acknowledgement would have no effect.
    await first.apply(Modify(changes=(Change("d", rows["d"].version, json="1"),), force=True))
    assert await settled(first, mine, Change("d", rows["d"].version, json="2")) == ("d",)
    assert {row.id: row.json for row in await first.apply(Select(queue=queue, ids=("a", "d")))} == {
        "a": '"a"',
        "d": "1",
    }

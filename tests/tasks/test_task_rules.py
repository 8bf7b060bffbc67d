from __future__ import annotations

from typing import Any, TypeVar

import pytest

from intervalq.errors import DependencyError, InboxFull
from intervalq.tasks import rules
from intervalq.tasks._spec.transitions import rest
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Change,
    Command,
    Delete,
    Depend,
    End,
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
        """The tasks of a key; those that wait in parentheses."""
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


# --- keys ---------------------------------------------------------------------------------------------


def test_of_a_key_the_first_can_be_claimed_and_the_others_wait_in_order(world: World) -> None:
    world.put("a", "b", "c", key="k")
    assert world.line() == ["a", "(b)", "(c)"]
    assert [world.row(id_).place for id_ in "abc"] == [1, 2, 3]
    assert [row.id for row in world.claim(limit=10)] == ["a"]
    assert world.claim(limit=10) == ()


def test_an_acknowledgement_lets_the_next_in_without_counting_it_as_a_change(world: World) -> None:
    world.put("a", "b", "c", key="k")
    (row,) = world.claim()
    before = world.row("b")
    assert world.settle(Delete("a", row.version)).lost == ()
    assert world.row("b") == before._replace(waiting=False)
    assert world.line() == ["b", "(c)"]


def test_keys_of_other_queues_and_names_are_others(world: World) -> None:
    world.put("a", key="k")
    world.put("b", key="K")
    world.put("c", key="k", queue="other")
    assert (world.line(), world.line("K"), world.line(queue="other")) == (["a"], ["b"], ["c"])


def test_several_of_a_key_are_removed_at_once_in_any_order(world: World) -> None:
    for order in (("a", "b"), ("b", "a"), ("a", "c"), ("c", "a", "b")):
        world.put("a", "b", "c", "d", key="k")
        world.do(Modify(deletes=tuple(Delete(id_, 0) for id_ in order)))
        left = [id_ for id_ in "abcd" if id_ not in order]
        assert world.line() == [left[0], *(f"({id_})" for id_ in left[1:])]
        world.do(Modify(deletes=tuple(Delete(id_, 0) for id_ in left)))


def test_one_that_became_the_first_in_the_same_command_is_changed_as_such(world: World) -> None:
    world.put("a", "b", "c", key="k")
    modified = world.do(Modify(deletes=(Delete("a", 0),), changes=(Change("b", 0, json="2"),)))
    assert modified.changed == (world.row("b"),)
    assert (world.row("b").waiting, world.row("b").json, world.line()) == (False, "2", ["b", "(c)"])
    modified = world.do(Modify(changes=(Change("b", 1, queue="other"), Change("c", 0, queue="other"))))
    assert world.line() == []
    assert world.line(queue="other") == ["b", "(c)"]
    assert modified.changed == (world.row("b"), world.row("c"))


def test_a_change_of_one_that_waits_leaves_it_waiting_at_its_place(world: World) -> None:
    world.put("a", "b", "c", key="k")
    world.do(Modify(changes=(Change("b", 0, at=5, json="9"),)))
    assert world.line() == ["a", "(b)", "(c)"]
    assert world.row("b").place == 2


def test_a_move_leaves_one_line_and_joins_the_end_of_the_other(world: World) -> None:
    world.put("a", "b", key="k")
    world.put("x", "y", key="k", queue="other")
    world.do(Modify(changes=(Change("a", 0, queue="other"),)))
    assert (world.line(), world.line(queue="other")) == (["b"], ["x", "(y)", "(a)"])
    world.do(Modify(changes=(Change("y", 0, queue="q"),)))
    assert (world.line(), world.line(queue="other")) == (["b", "(y)"], ["x", "(a)"])


def test_the_answer_shows_tasks_as_they_are_after_the_whole_command(world: World) -> None:
    world.put("a", key="k")
    modified = world.do(Modify(deletes=(Delete("a", 0),), inserts=(Insert("q", "1", "b", key="k"),)))
    assert modified.inserted == (world.row("b"),)
    assert not world.row("b").waiting


def test_the_newest_takes_the_place_of_all_that_nobody_has_claimed(world: World) -> None:
    world.put("a", "b", key="k")
    world.put("c", key="k", replace=True)
    assert world.line() == ["c"]
    (row,) = world.claim()
    world.put("d", "e", key="k")
    world.put("f", key="k", replace=True)
    assert world.line() == ["c", "(f)"]
    assert world.settle(Delete("c", row.version)).lost == ()
    assert world.line() == ["f"]


def test_one_whose_claim_has_ended_by_itself_is_replaced(world: World) -> None:
    world.put("a", key="k")
    (row,) = world.claim(lease=10)
    world.now += 10
    world.put("b", key="k", replace=True)
    assert world.line() == ["b"]
    assert world.settle(Delete("a", row.version)).lost == ("a",)


def test_an_inbox_holds_its_limit_behind_the_first(world: World) -> None:
    world.put("a", "b", "c", key="k", inbox=2)
    with pytest.raises(InboxFull, match="holds at most 2"):
        world.put("d", key="k", inbox=2)
    assert world.line() == ["a", "(b)", "(c)"]
    world.put("e", key="k")  # each insert says for itself what it is held to
    world.put("f", key="other", inbox=0)
    with pytest.raises(InboxFull):
        world.put("g", key="other", inbox=0)


def test_an_inbox_counts_what_the_same_command_inserts_and_removes(world: World) -> None:
    with pytest.raises(InboxFull):
        world.put("a", "b", "c", key="k", inbox=1)
    assert world.line() == []
    world.put("a", "b", key="k", inbox=1)
    insert = Insert("q", "1", "c", key="k", inbox=1)
    world.do(Modify(deletes=(Delete("b", 0),), inserts=(insert,)))
    assert world.line() == ["a", "(c)"]


# --- claims -------------------------------------------------------------------------------------------


def test_a_claim_counts_and_a_release_leaves_all_else(world: World) -> None:
    (before,) = world.put("a", attempt=3, error="x").inserted
    world.now += 5
    (row,) = world.claim(lease=10)
    assert row == before._replace(
        version=1, session="me", until=world.now + 10, claims=1, attempt=4, modified=world.now, begun=True
    )
    world.settle(Change("a", 1))
    assert world.row("a") == row._replace(version=2, session=None, until=None, begun=False)


def test_an_end_in_good_order_counts_no_attempt_and_keeps_the_time(world: World) -> None:
    world.put("a", at=5)
    (row,) = world.claim()
    world.now += 5
    world.do(End("me"))
    expected = row._replace(version=2, session=None, attempt=0, modified=world.now, begun=False)
    assert world.row("a") == expected
    assert world.do(Work("me", queues=("q",), limit=1)) == Worked(alive=False)


def test_a_lapse_counts_as_an_attempt_and_puts_the_task_behind(world: World) -> None:
    world.put("a", at=5)
    (row,) = world.claim()
    world.now += 5 * SECOND
    assert world.do(Beat("you")).lapsed == ()  # exactly its expiry is not too long
    world.begin("you")
    world.now += 1
    assert world.do(Beat("you")).lapsed == ("me",)
    after = world.row("a")
    assert world.now <= after.at <= world.now + SECOND // 10
    assert after == row._replace(
        version=2,
        session=None,
        at=after.at,
        error="h:7 was lost",
        modified=world.now,
        begun=False,
        alone=True,
    )
    assert after.attempt == 1
    assert world.settle(Delete("a", row.version)).lost == ("a",)


def test_a_claim_that_has_not_begun_costs_no_attempt(world: World) -> None:
    world.put("a", "b", "c", attempt=2, error="x")
    world.claim(limit=3, begins=0)
    assert {world.row(id_).attempt for id_ in "abc"} == {2}
    assert world.do(Work("me", begun=("b", "b", "never"))) == Worked()
    assert world.do(Work("me", begun=("b",))) == Worked()
    assert world.do(Work("you", begun=("c",))) == Worked()
    assert [(world.row(id_).attempt, world.row(id_).begun) for id_ in "abc"] == [
        (2, False),
        (3, True),
        (2, False),
    ]
    assert {world.row(id_).version for id_ in "abc"} == {1}
    world.settle(Change("a", 1))
    world.now += 10 * SECOND
    world.do(Beat("somebody"))
    assert [(world.row(id_).attempt, world.row(id_).error) for id_ in "abc"] == [
        (2, "x"),
        (3, "h:7 was lost"),
        (2, "x"),
    ]
    assert [world.row(id_).alone for id_ in "abc"] == [False, True, True]
    assert not any(world.row(id_).begun for id_ in "abc")


def test_what_is_to_run_alone_does_so_until_an_attempt_ends_without_harm(world: World) -> None:
    def lost(*ids: str) -> None:
        world.begin("gone", expiry=1)
        assert len(world.claim("gone", limit=9, begins=0)) == len(ids)
        world.now += 2
        world.do(Beat("me"))
        world.now += 10 * SECOND
        world.begin("me")

    world.put("a")
    lost("a")
    (row,) = world.claim(begins=1)
    assert (row.begun, row.attempt, row.alone) == (False, 0, True)
    world.settle(Change("a", row.version))  # given back
    assert world.row("a").alone
    (row,) = world.claim(begins=2)
    assert (row.begun, row.attempt, row.alone) == (True, 1, True)
    world.settle(Change("a", row.version, keep=True))
    assert (world.row("a").begun, world.row("a").alone) == (True, True)
    world.settle(Change("a", row.version + 1, error="no"))
    assert (world.row("a").begun, world.row("a").alone) == (False, False)
    world.put("b")
    rows = world.claim(limit=2, begins=1)
    assert {(row.begun, row.attempt) for row in rows} == {(True, 2), (True, 1)}
    world.do(End("me"))
    assert {(world.row(id_).attempt, world.row(id_).alone) for id_ in "ab"} == {(1, False), (0, False)}


def test_tasks_that_were_lost_together_come_back_apart_and_later_each_time() -> None:
    def rests(attempt: int) -> list[int]:
        return sorted(rest(Row(f"task{number}", 1, "q", 0, "1", attempt=attempt)) for number in range(100))

    for attempt, most in ((1, 0.1), (2, 1), (3, 3), (4, 7), (5, 15), (6, 31), (7, 60), (2**40, 60)):
        found = rests(attempt)
        assert len(set(found)) > 90
        assert 0 <= found[0] < 0.1 * most * SECOND
        assert 0.9 * most * SECOND < found[-1] < most * SECOND


def test_who_beats_lives_and_is_not_lapsed_by_its_own_beat(world: World) -> None:
    world.put("a")
    world.claim()
    world.now += 100 * SECOND
    beaten = world.do(Beat("me"))
    assert (beaten.alive, beaten.held, beaten.lapsed) == (True, 1, ("you",))
    assert not world.do(Beat("you")).alive
    assert world.row("a").session == "me"


def test_a_lease_that_ends_frees_the_task_for_others_but_not_from_its_holder(world: World) -> None:
    world.put("a", "b")
    one, two = world.claim(limit=2, lease=10)
    world.now += 9
    assert world.claim("you", limit=2) == ()
    world.now += 1
    assert world.settle(Delete(one.id, 1)).lost == ()
    (stolen,) = world.claim("you", limit=2)
    assert (stolen.id, stolen.version, stolen.claims, stolen.attempt) == (two.id, 2, 2, 2)
    assert world.settle(Delete(two.id, 1)).lost == (two.id,)


def test_a_claim_is_kept_for_a_lease_more_by_its_holder_only(world: World) -> None:
    world.put("a")
    (row,) = world.claim(lease=10)
    keep = Change("a", row.version, keep=True, lease=50)
    for session in ("you", ""):
        assert world.refused(Modify(session, changes=(keep,))).claims == ("a",)
    world.do(Modify("me", changes=(keep,)))
    kept = world.row("a")
    assert (kept.session, kept.until, kept.version, kept.claims) == ("me", world.now + 50, 2, 1)
    world.now += 50
    assert world.refused(Modify("me", changes=(Change("a", 2, keep=True),))).claims == ("a",)


def test_what_moves_to_another_queue_is_nobodys_there(world: World) -> None:
    world.put("a")
    world.claim()
    world.settle(Change("a", 1, queue="other", keep=True))
    assert world.row("a").session is None
    assert world.claim(queue="other")[0].id == "a"


def test_wait_is_until_the_next_of_the_queues_is_ready_by_itself(world: World) -> None:
    world.put("a", delay=70)
    world.put("b", delay=50, queue="other")
    world.put("c", delay=1, queue="elsewhere")
    assert world.do(Work("me", queues=("q", "other"), limit=1)).wait == 50
    world.now += 50
    worked = world.do(Work("me", queues=("q", "other"), limit=1))
    assert (len(worked.claimed), worked.wait) == (1, None)
    assert world.do(Work("me", queues=("other",), limit=1)).wait is None


def test_an_arrival_is_at_its_time_or_after_its_delay(world: World) -> None:
    rows = world.put("a", at=7).inserted + world.put("b", delay=7).inserted + world.put("c").inserted
    assert [row.at for row in rows] == [7, world.now + 7, world.now]
    world.do(Modify(changes=(Change("a", 0, at=9), Change("b", 0, at=9, delay=3))))
    assert [world.row(id_).at for id_ in "ab"] == [9, world.now + 3]


def test_shares_are_equal_first_and_then_what_there_is(world: World) -> None:
    world.put(*(f"a{n}" for n in range(20)), queue="a")
    world.put("b0", queue="b")
    world.put(*(f"c{n}" for n in range(20)), queue="c")
    rows = world.do(Work("me", queues=("a", "b", "c"), limit=12)).claimed
    counts = {queue: sum(row.queue == queue for row in rows) for queue in "abc"}
    assert sum(counts.values()) == 12
    assert counts["b"] == 1
    assert min(counts["a"], counts["c"]) >= 4


# --- modify -------------------------------------------------------------------------------------------


def test_all_that_failed_is_told_and_force_asks_neither_version_nor_claim(world: World) -> None:
    world.put("a", "b", "c")
    (held,) = world.claim()
    free = sorted({"a", "b", "c"} - {held.id})
    error = world.refused(
        Modify(
            "you",
            inserts=(Insert("q", "1", "a"), Insert("q", "1", "new")),
            changes=(Change(held.id, 1), Change("x", 0)),
            deletes=(Delete(free[0], 3),),
            depends=(Depend(free[1], 1), Depend("y", 0)),
        )
    )
    assert (error.inserts, error.changes, error.deletes) == (("a",), ("x",), (free[0],))
    assert (error.depends, error.claims) == ((free[1], "y"), (held.id,))
    world.do(Modify(deletes=(Delete(held.id, 9),), changes=(Change(free[0], 9),), force=True))
    assert [row.id for row in world.do(Select())] == free
    assert world.refused(Modify(deletes=(Delete(held.id, 0),), force=True)).deletes == (held.id,)


def test_one_may_depend_on_what_others_have_claimed(world: World) -> None:
    world.put("a")
    world.claim()
    world.do(Modify("you", depends=(Depend("a", 1),)))
    assert world.row("a").version == 1


# --- dedupe -------------------------------------------------------------------------------------------


def test_a_dedupe_key_is_taken_while_the_task_is_there_and_for_its_time_after(world: World) -> None:
    world.put("a", dedupe="d", dedupe_for=10)
    world.now += 10**9
    assert world.put("b", dedupe="d").existing == (("b", "a"),)
    assert world.put("c", dedupe="d", queue="other").existing == ()
    assert world.put("d", dedupe="D").existing == ()
    world.do(Modify(deletes=(Delete("a", 0),)))
    world.now += 9
    assert world.put("b", dedupe="d").existing == (("b", "a"),)
    world.now += 1
    assert world.put("b", dedupe="d").existing == ()
    assert world.put("e", dedupe="d").existing == (("e", "b"),)


def test_a_dedupe_key_is_taken_within_one_command(world: World) -> None:
    modified = world.put("a", "b", dedupe="d")
    assert ([row.id for row in modified.inserted], modified.existing) == (["a"], (("b", "a"),))


def test_an_acknowledgement_begins_the_time_after(world: World) -> None:
    world.put("a", dedupe="d", dedupe_for=10)
    (row,) = world.claim()
    assert world.put("b", dedupe="d").existing == (("b", "a"),)
    world.now += 5
    world.settle(Delete("a", row.version))
    world.now += 9
    assert world.put("b", dedupe="d").existing == (("b", "a"),)
    world.now += 1
    assert world.put("b", dedupe="d").existing == ()


def test_a_move_leaves_the_dedupe_key_to_its_queue(world: World) -> None:
    world.put("a", dedupe="d", dedupe_for=10)
    world.do(Modify(changes=(Change("a", 0, queue="other"),)))
    assert world.row("a").dedupe is None
    assert world.put("b", dedupe="d").existing == (("b", "a"),)
    assert world.put("c", dedupe="d", queue="other").existing == ()
    world.now += 10
    assert world.put("b", dedupe="d").existing == ()


def test_one_that_is_replaced_gives_up_its_dedupe_key(world: World) -> None:
    world.put("a", key="k", dedupe="d")
    world.put("b", key="k", replace=True)
    assert world.put("c", dedupe="d").existing == ()


def test_marks_are_swept_when_their_time_is_over_and_not_before(world: World) -> None:
    world.put("a", dedupe="d", dedupe_for=10)
    world.do(Modify(deletes=(Delete("a", 0),)))
    world.now += 9
    world.do(Beat("me"))
    assert world.table.mark("q", "d") is not None
    world.now += 1
    world.do(Beat("me"))
    assert world.table.mark("q", "d") is None

"""The rules of tasks with keys: exclusive keys, inboxes, and dedupe keys."""

from __future__ import annotations

import pytest

from intervalq.errors import InboxFull
from intervalq.tasks.rules import (
    Beat,
    Change,
    Delete,
    Insert,
    Modify,
)
from tasks import task_world
from tasks.task_world import World

world = task_world.world


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
    world.put("e", key="k")  # each insert has its own limit
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

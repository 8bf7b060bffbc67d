from __future__ import annotations

from intervalq.tasks._spec.transitions import rest
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Change,
    Delete,
    Depend,
    End,
    Insert,
    Modify,
    Row,
    Select,
    Work,
    Worked,
)
from tasks import task_world
from tasks.task_world import World

world = task_world.world


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
    assert (beaten.alive, beaten.claim_count, beaten.lapsed) == (True, 1, ("you",))
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

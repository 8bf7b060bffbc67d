"""The slots of a shard: ranges of grants, and how an answer sorts its tickets."""

from __future__ import annotations

import pytest

from intervalq._shard.grants import Grant, GrantRange, Grants
from intervalq.rules import Slot


def of(tickets: list[int]) -> list[Slot]:
    return [Slot(ticket, 10 * ticket) for ticket in tickets]


# waiting / asked about / granted / missed / granted and still here / left; and up to where they are revoked
SORTED = {
    "not asked ones stay": ("1234 / 123 / 123 / / 123 / 4", 0),
    "let pass meanwhile": ("23 / 12 / 12 / / 2 / 3", 0),
    "missed": ("123 / 12 / 2 / 1 / 2 / 3", 0),
    "neither granted nor missed": ("123 / 12 / 2 / / 2 / 13", 0),
    "revoked ones": ("1234 / 1 / / / / 4", 3),
    "revoked though asked about": ("123 / 12 / 2 / / 2 / 3", 1),
    "out of ticket order": ("839 / 83 / 8 / 3 / 8 / 9", 0),
    "out of order and granted": ("839 / 83 / 83 / / 83 / 9", 5),
}


@pytest.mark.parametrize("what", SORTED)
def test_an_answer_sorts_the_tickets(what: str) -> None:
    text, revoked = SORTED[what]
    waiting, asked, granted, missed, here, left = (
        [int(ticket) for ticket in part.strip()] for part in text.split("/")
    )
    slots = Grants()
    slots.tickets.extend(of(waiting))
    assert slots.answered({*of(asked)}, {*of(granted)}, {*missed}, revoked) == {*of(here)}
    assert [*slots.tickets] == of(left)


def test_a_leased_ticket_that_is_to_be_granted_again_outlives_an_answer_about_something_else() -> None:
    slots = Grants()
    slots.tickets.extend(of([3, 4]))
    assert not slots.answered(set(), set(), set(), 4, leased=[4])
    assert [*slots.tickets] == of([4])
    slots.answered({*of([4])}, set(), {4}, 4, leased=[4])
    assert not slots.tickets, "a later one is granted: it is dead, lease or not"


GIVEN_BACK = {"345": "345", "452": "45", "34": "", "554": "45", "67": "67"}


@pytest.mark.parametrize("unused", GIVEN_BACK)
def test_only_the_very_last_tickets_go_back(unused: str) -> None:
    slots = Grants()
    slots.unused.extend(of([int(ticket) for ticket in unused]))
    assert "".join(str(slot.ticket) for slot in slots.given_back(5)) == GIVEN_BACK[unused]
    assert not slots.unused, "the rest is of no use to anybody"


def each(run: GrantRange) -> list[Grant]:
    """The grants of a range, one after the other."""
    grants = Grants()
    grants.granted.append(run)
    return [grants.use() for _ in range(run.count)]


def test_each_slot_of_a_run_has_its_own_ticket_and_instant() -> None:
    run = GrantRange(Slot(7, 1_000), held_total=500, steps=0, count=3, step=10)
    run.after, run.before = 4, 9
    assert (run.instant, run.last, run.end) == (1_500, 1_520, 10)
    assert (run.opens, run.closes) == (1_504, 1_509)
    grants = each(run)
    assert [grant.ticket for grant in grants] == [7, 8, 9]
    assert [grant.instant for grant in grants] == [1_500, 1_510, 1_520]
    assert [(grant.opens, grant.closes) for grant in grants] == [
        (1_504, 1_509),
        (1_514, 1_519),
        (1_524, 1_529),
    ]
    assert [grant.slot for grant in grants] == [Slot(7, 1_000), Slot(8, 1_010), Slot(9, 1_020)]


def test_a_run_is_open_from_its_last_slot_to_the_end_of_its_first() -> None:
    run = GrantRange(Slot(1, 1_000), held_total=0, steps=0, count=3, step=10)
    run.after, run.before = 4, 100
    assert [run.all_open(at) for at in (1_023, 1_024, 1_100, 1_101)] == [False, True, True, False]


def moving(count: int = 4) -> Grants:
    """A range with slots at 100, 200, ..., which may be used late, and are over 10 after they come."""
    grants = Grants()
    grants.grant(GrantRange(Slot(1, 100), held_total=0, steps=0, count=count, step=100))
    grants.granted[0].before, grants.granted[0].moves = 10, True
    return grants


def test_in_a_run_of_ones_own_a_job_may_begin_up_to_the_end_of_the_last_slot() -> None:
    grants = moving()
    assert (grants.granted[0].opens, grants.granted[0].closes) == (100, 410)
    grants.granted[0].moves = False
    assert grants.granted[0].closes == 110


@pytest.mark.parametrize(("at", "kept"), [(110, 0), (111, 2), (210, 2), (211, 3), (410, 4)])
def test_a_late_start_covers_the_slots_that_lie_too_near_to_it(at: int, kept: int) -> None:
    """A start at 210 is an interval less the tolerance before the slot at 300, which others may have."""
    grants = moving()
    assert grants.move(at) is (at > 110)
    assert grants.granted[0].shift == max(0, at - 110), "it ends when its job begins"
    grants.use()
    assert [slot.ticket for slot in grants.give_all_back(4)] == [*range(max(2, kept + 1), 5)]


def test_slots_that_follow_are_one_run_whenever_they_were_granted() -> None:
    grants = moving()
    grants.grant(GrantRange(Slot(5, 500), held_total=0, steps=0, count=2, step=100))
    grants.grant(GrantRange(Slot(7, 701), held_total=0, steps=0, step=100))
    grants.grant(GrantRange(Slot(8, 801), held_total=0, steps=1, step=100))
    grants.grant(GrantRange(Slot(9, 901), held_total=0, steps=1, step=100, at_once=True))
    assert [run.count for run in grants.granted] == [6, 1, 1, 1]
    used = [grants.use() for _ in range(6)]
    assert [(grant.ticket, grant.instant) for grant in used] == [(n, 100 * n) for n in range(1, 7)]


def test_slots_behind_a_late_start_move_by_as_much_but_not_beyond_the_last_ones_end() -> None:
    grants = moving()
    assert not grants.move(105)
    used = [grants.use()]
    assert grants.move(235)
    used += [grants.use(), grants.use()]
    assert not grants.move(410)
    used.append(grants.use())
    assert [(grant.opens, grant.closes) for grant in used] == [
        (100, 110),
        (225, 235),
        (325, 335),
        (425, 410),  # it found no time any more
    ]
    assert [round(grant.due * 1e6) for grant in used[:3]] == [100, 225, 325], "a log shows where they moved"


def row(first: int, count: int = 1) -> list[Slot]:
    """Consecutive tickets whose slots are ten apart."""
    return [Slot(ticket, 10 * ticket) for ticket in range(first, first + count)]


def test_slots_are_used_from_the_first_on_and_a_go_stays_what_it_was() -> None:
    slots = Grants()
    slots.granted.append(GrantRange(Slot(1, 10), held_total=0, steps=0, count=2, step=10))
    slots.granted.append(GrantRange(Slot(3, 30), held_total=0, steps=0))
    slots.tickets.extend(row(4))
    assert slots.granted_count == 3
    assert [*slots.coming()] == row(1, 4)
    grants = []
    for left in (2, 1, 0):
        grants.append(slots.use())
        assert slots.granted_count == left
        assert [*slots.coming()] == row(5 - left - 1, left + 1)
    assert [grant.slot for grant in grants] == row(1, 3)
    assert not slots.granted

"""The slots of a shard by themselves: runs of them, and how an answer sorts its tickets."""

from __future__ import annotations

import pytest

from intervalq._shard.grants import Grant, GrantRange, Grants
from intervalq.rules import Slot


def of(tickets: list[int]) -> list[Slot]:
    return [Slot(ticket, 10 * ticket) for ticket in tickets]


# waiting / asked about / granted / missed / granted and still here / left; and up to where they are void
SORTED = {
    "not asked ones stay": ("1234 / 123 / 123 / / 123 / 4", 0),
    "let pass meanwhile": ("23 / 12 / 12 / / 2 / 3", 0),
    "missed": ("123 / 12 / 2 / 1 / 2 / 3", 0),
    "neither granted nor missed": ("123 / 12 / 2 / / 2 / 13", 0),
    "void ones": ("1234 / 1 / / / / 4", 3),
    "void though asked about": ("123 / 12 / 2 / / 2 / 3", 1),
    "out of ticket order": ("839 / 83 / 8 / 3 / 8 / 9", 0),
    "out of order and granted": ("839 / 83 / 83 / / 83 / 9", 5),
}


@pytest.mark.parametrize("what", SORTED)
def test_an_answer_sorts_the_tickets(what: str) -> None:
    text, void = SORTED[what]
    waiting, asked, granted, missed, here, left = (
        [int(ticket) for ticket in part.strip()] for part in text.split("/")
    )
    slots = Grants()
    slots.tickets.extend(of(waiting))
    assert slots.answered({*of(asked)}, {*of(granted)}, {*missed}, void) == {*of(here)}
    assert [*slots.tickets] == of(left)


GIVEN_BACK = {"345": "345", "452": "45", "34": "", "554": "45", "67": "67"}


@pytest.mark.parametrize("unused", GIVEN_BACK)
def test_only_the_very_last_tickets_go_back(unused: str) -> None:
    slots = Grants()
    slots.unused.extend(of([int(ticket) for ticket in unused]))
    assert "".join(str(slot.ticket) for slot in slots.given_back(5)) == GIVEN_BACK[unused]
    assert not slots.unused, "the rest is of no use to anybody"


def test_each_slot_of_a_run_has_its_own_ticket_and_instant() -> None:
    run = GrantRange(Slot(7, 1_000), held_total=500, steps=0, count=3, step=10)
    run.after, run.before = 4, 9
    assert (run.instant, run.last, run.end) == (1_500, 1_520, 10)
    assert (run.opens, run.closes) == (1_504, 1_509)
    grants = [Grant(run, ahead) for ahead in (3, 2, 1)]
    assert [grant.ticket for grant in grants] == [7, 8, 9]
    assert [grant.instant for grant in grants] == [1_500, 1_510, 1_520]
    assert [(grant.opens, grant.closes) for grant in grants] == [
        (1_504, 1_509),
        (1_514, 1_519),
        (1_524, 1_529),
    ]
    assert [*run] == [Slot(7, 1_000), Slot(8, 1_010), Slot(9, 1_020)], "on the queue's clock"


def test_a_run_is_open_from_its_last_slot_to_the_end_of_its_first() -> None:
    run = GrantRange(Slot(1, 1_000), held_total=0, steps=0, count=3, step=10)
    run.after, run.before = 4, 100
    assert [run.all_open(at) for at in (1_023, 1_024, 1_100, 1_101)] == [False, True, True, False]


def row(first: int, count: int = 1) -> list[Slot]:
    """Tickets in a row, ten apart."""
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

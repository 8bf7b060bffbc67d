"""Slots that wait for a window come sooner if jobs took less: the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from intervalq._spec import standing, windows
from intervalq._spec.standing import placed
from intervalq.rules import (
    STARTS,
    Advance,
    Answer,
    Configure,
    HighWaterMark,
    Hold,
    Limit,
    Reclaim,
    Resume,
    Settings,
    Settled,
    Slot,
    State,
    Units,
)
from rule_steps import do
from window_oracle import Run

SECOND = 1_000_000
T0 = 64 * 15_625_000 * SECOND
TOKENS = Limit(100, 64 * SECOND, "tokens")
"""A cell is a third of a second."""
SETTINGS = Settings(interval=SECOND, limits=(TOKENS,))


def step(state: State | None, now: int, **fields: Any) -> tuple[State, Answer]:
    return do(state, Advance(settings=SETTINGS, nonce="g", generation="g", **fields), T0 + now)


def several(*units: int, now: int = 0) -> tuple[State, tuple[Slot, ...]]:
    """A new record with tickets; those whose slots come at once are granted."""
    taken: tuple[Units, ...] = tuple((some,) for some in units)
    state, answer = do(
        None, Advance(settings=SETTINGS, nonce="g", take=len(units), units=taken, reach=30 * SECOND), T0 + now
    )
    return state, answer.taken


def settled(state: State, slot: Slot, now: int, more: int) -> State:
    return step(state, now, settled=(Settled(slot.due, state.lag, (more,)),))[0]


def ask(state: State, slot: Slot, now: int, **fields: Any) -> tuple[State, Answer]:
    return step(state, now, slots=(slot,), **{"ahead": SECOND, **fields})


def moved_to(state: State, slot: Slot, answer: Answer) -> Slot:
    """Where a slot is that an answer granted sooner."""
    assert (answer.granted, answer.missed) == ((slot.ticket,), ())
    assert placed(state, slot) != slot
    return placed(state, slot)


def counted(state: State) -> list[tuple[int, int]]:
    """The cells that count, by the seconds in which they end."""
    (use,) = state.usage
    return [(-((T0 - cell[0]) // SECOND), cell[1]) for cell in sorted([*use.used, *use.ahead])]


def test_the_next_ticket_is_granted_as_soon_as_there_is_room() -> None:
    state, slots = several(90, 90, 90)
    assert [(slot.due - T0) // SECOND for slot in slots] == [0, 64, 128]
    assert ask(state, slots[1], 2 * SECOND)[1].granted == (), "there is no room yet"
    state = settled(state, slots[0], 2 * SECOND, -85)
    assert ask(state, slots[2], 2 * SECOND)[1].granted == (), "it is not the next one"
    state, answer = ask(state, slots[1], 2 * SECOND)
    moved = moved_to(state, slots[1], answer)
    assert moved == Slot(2, T0 + 2 * SECOND, 1, (90,))
    assert (answer.at_once, answer.count) == (True, 0)
    assert (state.ticket, state.current, state.current_due, state.due) == (3, 2, moved.due, slots[2].due)
    assert counted(state) == [(1, 5), (3, 90), (129, 90)]
    state = settled(state, moved, 3 * SECOND, -85)
    state, answer = ask(state, slots[2], 3 * SECOND)
    assert (moved_to(state, slots[2], answer).due, state.due) == (T0 + 3 * SECOND, T0 + 3 * SECOND)
    assert counted(state) == [(1, 5), (3, 5), (4, 90)]
    assert step(state, 3 * SECOND, take=1, units=((1,),))[1].taken[0].due == T0 + 64_433_334


def test_it_comes_an_interval_behind_the_last_granted_slot_and_not_too_far_ahead() -> None:
    state, slots = several(40, 40, 40)
    state = settled(state, slots[0], SECOND, -40)
    assert ask(state, slots[2], SECOND, ahead=SECOND - 1)[1].granted == ()
    state, answer = ask(state, slots[2], SECOND)
    assert moved_to(state, slots[2], answer).due == slots[1].due + SECOND
    assert not answer.at_once


def test_new_tickets_come_behind_it_once_it_is_granted_and_are_not_granted() -> None:
    state, slots = several(90, 90)
    more: dict[str, Any] = {"take": 2, "units": ((5,), (5,)), "reach": 90 * SECOND}
    _, answer = ask(state, slots[1], 2 * SECOND, **more)
    assert (answer.granted, answer.count) == ((), 0), "they would wait behind it for nothing"
    state = settled(state, slots[0], 2 * SECOND, -85)
    state, answer = ask(state, slots[1], 2 * SECOND, **more)
    assert moved_to(state, slots[1], answer).due == T0 + 2 * SECOND
    assert (answer.begun, [slot.ticket for slot in answer.taken]) == (0, [3, 4])
    assert [slot.due - T0 for slot in answer.taken] == [3 * SECOND, 64_433_334]
    assert counted(state) == [(1, 5), (3, 90), (4, 5), (65, 5)]


@pytest.mark.parametrize("fields", [{"ahead": None}, {"generation": "other"}])
def test_only_a_request_for_it_moves_a_slot(fields: dict[str, Any]) -> None:
    state, slots = several(90, 90)
    state = settled(state, slots[0], 2 * SECOND, -80)
    command = Advance(**{"slots": slots[1:], "ahead": SECOND, "generation": "g", **fields})
    after, _ = do(state, command, T0 + 2 * SECOND)
    assert after.current_due in (slots[0].due, slots[1].due)


def test_a_held_queue_moves_none() -> None:
    state, slots = several(90, 90)
    state = settled(state, slots[0], 2 * SECOND, -80)
    state, _ = do(state, Hold(length=10 * SECOND), T0 + 2 * SECOND)
    assert ask(state, slots[1], 3 * SECOND)[1].granted == ()
    state, _ = do(state, Resume(), T0 + 4 * SECOND)
    state, answer = ask(state, slots[1], 4 * SECOND)
    moved_to(state, slots[1], answer)


@pytest.mark.parametrize("among", ["last", "others behind it"])
def test_without_an_answer_the_slot_where_it_was_is_gone(among: str) -> None:
    """A copy of the request, or the next one, gets another ticket; nobody else's slot is too close to it."""
    state, slots = several(90, 90, *([] if among == "last" else [5]))
    state = settled(state, slots[0], 2 * SECOND, -80)
    state, answer = ask(state, slots[1], 2 * SECOND)
    moved_to(state, slots[1], answer)
    late = {"until": T0 + 70 * SECOND, "high_water_mark": HighWaterMark(state.ticket, state.due)}
    for now, how in ((2, {}), (66, {}), (66, late)):
        after, answer = ask(state, slots[1], now * SECOND, **how)
        assert (answer.granted, answer.missed) == ((), (2,))
        assert answer.taken[0].ticket == len(slots) + 1
        assert answer.taken[0].due > state.due
        assert after.ticket == len(slots) + 1


def test_a_process_that_is_late_for_a_moved_slot_keeps_its_place() -> None:
    state, slots = several(90, 90, 5)
    state = settled(state, slots[0], 2 * SECOND, -80)
    state, answer = ask(state, slots[1], 2 * SECOND)
    moved = moved_to(state, slots[1], answer)
    assert step(state, 2 * SECOND + 1, slots=(moved,))[1].missed == (2,), "it is granted again only late"
    mark = HighWaterMark(state.ticket, state.due, 0)
    after, answer = step(state, 4 * SECOND, slots=(moved,), until=T0 + 5 * SECOND, high_water_mark=mark)
    assert (answer.granted, answer.missed, answer.at_once) == ((2,), (), True)
    assert after.ticket == 3
    assert after.clock(T0 + 4 * SECOND) == moved.due + after.tolerance
    assert counted(after) == [(1, 10), (3, 90), (66, 5)]
    copy = Advance(generation="g", slots=(moved,), until=T0 + 9 * SECOND, high_water_mark=mark)
    assert do(after, copy, T0 + 5 * SECOND)[1].granted == ()


def test_another_interval_makes_no_slot_end_where_one_that_came_sooner_ended() -> None:
    settings = replace(SETTINGS, interval=2 * SECOND)
    took = Advance(settings=settings, nonce="g", take=2, costs=(1, 63), units=((90,), (90,)))
    state, answer = do(None, took, T0)
    first, slot = answer.taken
    state = settled(state, first, SECOND, -80)
    state, answer = ask(state, slot, slot.due - T0 - 62 * SECOND)
    assert slot.due - moved_to(state, slot, answer).due == 62 * SECOND
    state, _ = do(state, Configure(interval=SECOND), T0 + 3 * SECOND)
    assert slot.due + 62 * SECOND == state.current_due
    late = {"until": T0 + 70 * SECOND, "high_water_mark": HighWaterMark(state.ticket, state.due)}
    assert ask(state, slot, 66 * SECOND, **late)[1].granted == ()


def test_no_slot_moves_where_jobs_are_leased() -> None:
    """A leased slot can be granted again after a lost answer; where its units are would not be known then."""
    settings, lease = replace(SETTINGS, max_running=2), 100 * SECOND
    first = Advance(settings=settings, nonce="g", take=2, units=((90,), (90,)), lease=lease)
    state, answer = do(None, first, T0)
    slots = answer.taken
    state, _ = do(state, Advance(generation="g", settled=(Settled(T0, state.lag, (-80,)),)), T0 + 2)
    asking = Advance(generation="g", slots=slots[1:], ahead=SECOND, lease=lease, notice=SECOND // 10)
    _, answer = do(state, asking, T0 + 2)
    assert (answer.granted, answer.missed, answer.count) == ((), (), 0)


def test_revoked_and_unknown_tickets_stay_out() -> None:
    state, slots = several(90, 90)
    state, _ = do(settled(state, slots[0], 2 * SECOND, -80), Reclaim(), T0 + 2 * SECOND)
    assert ask(state, slots[1], 2 * SECOND)[1].missed == (2,)
    assert ask(state, slots[1]._replace(ticket=3), 2 * SECOND)[1].missed == (3,)


def test_a_ticket_that_lost_writes_bring_back_is_counted() -> None:
    """The record has lost the second ticket, and what it took."""
    state, slots = several(90)
    lost = Slot(2, slots[0].due + 65 * SECOND, 1, (90,))
    mark = HighWaterMark(2, lost.due, 0)
    state, answer = ask(state, lost, 2 * SECOND, high_water_mark=mark)
    assert answer.healed
    assert answer.count == 0


# --- the judge --------------------------------------------------------------------------------------


class Settling(Run):
    """Jobs of several shards take much less than their tickets, whose slots wait for a window."""

    def _settings(self) -> Settings:
        pick = self.random.choice
        tokens = Limit(pick((10, 30, 100)), pick((SECOND, 4 * SECOND)), "tokens")
        starts = Limit(pick((5, 20)), pick((SECOND // 2, 2 * SECOND)))
        limits = pick(((tokens,), (tokens, starts), (starts, tokens)))
        return Settings(pick((1_000, 50_000)), 1, pick((0, 0, 0, 2)), 0, False, limits)

    def _took(self, taken: Units) -> Units:
        pairs = zip(self.settings.limits, taken, strict=True)
        return tuple([units if limit.unit == STARTS else units // 10 for limit, units in pairs])

    def step(self) -> None:
        shard = self.random.randrange(len(self.tickets))
        kind = self.random.random()
        if kind < 0.01:
            self._other(shard)
        elif kind < 0.03:
            self._apply(Resume())
        elif self.granted[shard] and kind < 0.7:
            self._begin(shard)
        elif len(self.tickets[shard]) < 2:
            self._advance(shard, take=1, units=(self._units(),))
        else:
            self._ask(shard)

    def pass_time(self) -> None:
        ahead = [each.opens for own in self.granted for each in own[:1] if each.opens > self.now]
        if ahead and self.random.random() < 0.7:
            self.now = min(ahead)
        elif not any(self.granted):
            self.now += self.random.choice((0, 1_000, 20_000))


def settling(seed: int) -> Run:
    made = Settling(seed)
    for _ in range(300):
        made.step()
        made.pass_time()
    return made


def test_slots_come_sooner_in_random_runs() -> None:
    """`window_oracle` does many more runs."""
    runs = [settling(seed) for seed in range(60)]
    assert sum(each.moved for each in runs) > 60
    assert [line for each in runs for line in each.over()] == []


def not_counted(state: State, slot: Slot, clock: int, notice: int) -> tuple[State, int, bool] | None:
    """The units of the ticket aren't counted where it is now."""
    found = _SOONER(state, slot, clock, notice)
    return None if found is None else (windows.give_back(found[0], slot._replace(due=found[1])), *found[1:])


def without_windows(state: State, slot: Slot, clock: int, notice: int) -> tuple[State, int, bool] | None:
    """Windows have room as if no job had begun."""
    empty = replace(state, usage=tuple(use._replace(used=()) for use in state.usage))
    found = _SOONER(empty, slot, clock, notice)
    return None if found is None else (replace(found[0], usage=state.usage), *found[1:])


_SOONER = standing.sooner


@pytest.mark.parametrize("bug", [not_counted, without_windows])
def test_the_judge_finds_bugs(bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "sooner", bug)
    assert any(settling(seed).over() for seed in range(30))

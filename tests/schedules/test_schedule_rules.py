from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq.schedules.rules import (
    BadRecord,
    NewerRecord,
    Record,
    ask,
    declare,
    end,
    fire,
    pause,
    renew,
    resume,
    skip,
    take_over,
)

OLD = Path(__file__).with_name("records_layout_1.jsonl").read_text().splitlines()
"""Records as the release before `fire` left them: new, running, ended, running in a pause, skipped."""

LEASE, GRACE = 10, 5
STEPS = st.one_of(
    st.tuples(st.just("fire"), st.integers(-8, 8), st.integers(0, 3), st.sampled_from("ab"), st.booleans()),
    st.tuples(st.sampled_from(["skip"]), st.integers(-8, 8)),
    st.tuples(st.sampled_from(["renew", "end", "take_over"]), st.sampled_from("ab")),
    st.tuples(st.just("declare"), st.sampled_from(["p", "q"])),
    st.tuples(st.sampled_from(["pause", "resume", "ask"])),
)


@given(st.lists(st.tuples(st.integers(-3, 6), STEPS), max_size=40))
def test_no_sequence_breaks_the_promises(  # noqa: C901, PLR0912, PLR0915 - one case per transition
    history: list[tuple[int, tuple[object, ...]]],
) -> None:
    """The clock may step back. Instants of occurrences are near the clock, before and behind it."""
    now = 1_000
    record = declare(None, "p", now)
    fired: list[int] = []
    closed = now  # occurrences up to here must not fire
    until, runs = 0, ""  # of the run that has the lease, as its holder knows it
    wanted = False  # whether somebody has asked for an occurrence that was neither fired nor skipped
    for step, (what, *arguments) in history:
        now += step
        before = record
        match what, *arguments:
            case "fire", int(offset), int(jitter), str(who), bool(leased):
                scheduled = now + offset
                outcome = fire(
                    record,
                    scheduled,
                    scheduled + jitter,
                    now,
                    f"{who}.{scheduled}",
                    grace=GRACE,
                    lease=LEASE,
                    overlap="skip" if leased else "allow",
                )
                record = outcome.record
                if outcome.verdict != "ours":
                    assert record is before
                else:
                    assert not before.paused or scheduled == before.asked
                    assert scheduled > closed, "decided already"
                    assert scheduled + jitter <= now <= scheduled + jitter + GRACE
                    assert not leased or not runs or now >= until, "an earlier run has the lease"
                    assert record.fence == before.fence + 1
                    assert record.fired == scheduled
                    assert record.reported == before.reported
                    fired.append(scheduled)
                    wanted = wanted and before.asked is not None and before.asked > scheduled
                    closed, runs, until = scheduled, f"{who}.{scheduled}", now + LEASE
            case "take_over", str(who):
                record = take_over(record, f"{who}.{record.fired}!", now, LEASE)
                if record is not before:
                    assert runs, "it has ended"
                    assert now >= until, "an earlier run has the lease"
                    assert (record.fired, record.fence) == (before.fired, before.fence + 1)
                    runs, until = f"{who}.{record.fired}!", now + LEASE
            case ("ask",):
                record = ask(record, now)
                closed = max(closed, record.through)
                assert record.is_asked
                assert record.asked is not None
                assert record.asked > closed
                wanted = True
            case "skip", int(offset):
                record = skip(record, now + offset)
                wanted = wanted and before.asked is not None and before.asked > now + offset
                closed = max(closed, now + offset)
            case "renew", str(who):
                holder = runs if runs.startswith(who) else f"{who}.{record.fired}"
                record = renew(record, holder, now, LEASE)
                if holder == runs:
                    until = max(until, now + LEASE)
                else:
                    assert record is before
            case "end", str(who):
                holder = runs if runs.startswith(who) else f"{who}.{record.fired}"
                record = end(record, holder, now, finished=True)
                if holder == runs:
                    runs = ""
                    assert not record.running
                    assert record.fired is not None
                    assert record.reported == max(before.reported, record.fired)
                else:
                    assert record is before
            case "declare", str(plan):
                record = declare(record, plan, now)
                assert record.plan == plan
                closed = max(closed, now) if plan != before.plan else closed
            case ("pause",):
                record = pause(record)
            case _:
                record = resume(record, now)
                closed = max(closed, now) if before.paused else closed
        assert record.is_asked == wanted, "no pause, and no change of the plan, loses it"
        assert record.through >= before.through
        assert record.reported >= before.reported
        assert record.reported <= record.through
        assert record.fence >= before.fence
        assert Record.from_text(record.to_text()) == record
    assert fired == sorted(set(fired)), "each occurrence at most once, in order"


def test_a_late_occurrence_is_a_misfire_and_a_waiting_one_is_late_from_the_end_of_the_run() -> None:
    record = declare(None, "p", 0)
    assert fire(record, 10, 10, 15, "a", grace=5, lease=LEASE).verdict == "ours"
    assert fire(record, 10, 10, 16, "a", grace=5, lease=LEASE).verdict == "misfire"
    assert fire(record, 10, 10, 10**9, "a", grace=None, lease=LEASE).verdict == "ours"
    running = fire(record, 10, 10, 10, "a", grace=5, lease=LEASE).record
    ran = end(running, "a", 18, finished=True, waited=True)
    assert fire(ran, 12, 12, 22, "b", grace=5, lease=LEASE, overlap="wait").verdict == "ours"
    assert fire(ran, 12, 12, 24, "b", grace=5, lease=LEASE, overlap="wait").verdict == "misfire"
    assert fire(ran, 12, 12, 22, "b", grace=5, lease=LEASE).verdict == "misfire"


def test_who_knows_of_a_run_knows_the_record_of_its_end() -> None:
    running = fire(declare(None, "p", 0), 10, 10, 10, "a", grace=5, lease=LEASE).record
    renewed = renew(running, "a", 15, LEASE)
    assert renewed != running
    assert end(renewed, "a", 17, finished=True) == end(running, "a", 11, finished=True)


def test_a_run_that_is_given_back_unfinished_stays_to_be_reported() -> None:
    running = fire(declare(None, "p", 0), 10, 10, 10, "a", grace=5, lease=LEASE).record
    given = end(running, "a", 12, finished=False)
    assert (given.running, given.until, given.reported) == (True, 12, 0)
    assert fire(given, 12, 12, 12, "b", grace=5, lease=LEASE).verdict == "ours"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 3}, "layout 3"),
        ({"version": True}, "version"),
        ({"fence": "1"}, "fence"),
        ({"fence": True}, "fence"),
        ({"through": 2**54}, "through"),
        ({"paused": 0}, "paused"),
        ({"plan": None}, "plan"),
    ],
)
def test_a_record_that_others_wrote_is_refused(change: dict[str, object], why: str) -> None:
    text = declare(None, "p", 0).to_text()
    with pytest.raises(NewerRecord if why == "layout 3" else BadRecord, match=why):
        Record.from_text(json.dumps(json.loads(text) | change))
    with pytest.raises(BadRecord):
        Record.from_text("[" * 100_000)
    assert Record.from_text(text) == replace(declare(None, "q", 0), plan="p")


@pytest.mark.parametrize("text", OLD)
def test_a_record_has_the_oldest_layout_that_holds_it(text: str) -> None:
    """Older processes go on until somebody asks for an occurrence: that they would drop, so they refuse."""
    old = Record.from_text(text)
    assert old.to_text() == text
    asked = ask(old, old.until + 1)
    new = asked.to_text()
    assert json.loads(new)["version"] == 2
    assert Record.from_text(new) == asked
    assert asked.asked is not None
    after = fire(resume(asked, asked.asked - 1), asked.asked, asked.asked, asked.asked, "a", grace=0, lease=9)
    assert after.verdict == "ours"
    assert json.loads(after.record.to_text())["version"] == 2, "it tells that this is beside the plan"
    ended = end(after.record, "a", asked.asked + 1, finished=True)
    at = asked.asked + 10
    assert json.loads(fire(ended, at, at, at, "b", grace=0, lease=9).record.to_text())["version"] == 1

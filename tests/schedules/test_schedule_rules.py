from __future__ import annotations

import json
from dataclasses import replace

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
            case "skip", int(offset):
                record = skip(record, now + offset)
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
    ran = end(fire(record, 10, 10, 10, "a", grace=5, lease=LEASE).record, "a", 18, finished=True)
    assert fire(ran, 12, 12, 22, "b", grace=5, lease=LEASE, overlap="wait").verdict == "ours"
    assert fire(ran, 12, 12, 24, "b", grace=5, lease=LEASE, overlap="wait").verdict == "misfire"
    assert fire(ran, 12, 12, 22, "b", grace=5, lease=LEASE).verdict == "misfire"


def test_a_run_that_is_given_back_unfinished_stays_to_be_reported() -> None:
    running = fire(declare(None, "p", 0), 10, 10, 10, "a", grace=5, lease=LEASE).record
    given = end(running, "a", 12, finished=False)
    assert (given.running, given.until, given.reported) == (True, 12, 0)
    assert fire(given, 12, 12, 12, "b", grace=5, lease=LEASE).verdict == "ours"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "layout 2"),
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
    with pytest.raises(NewerRecord if why == "layout 2" else BadRecord, match=why):
        Record.from_text(json.dumps(json.loads(text) | change))
    with pytest.raises(BadRecord):
        Record.from_text("[" * 100_000)
    assert Record.from_text(text) == replace(declare(None, "q", 0), plan="p")

"""The verdict over hand-written logs: what is a violation, and exactly what is allowed for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from faults.verdict import Log, Loss, Report, Start, Step, Stop, Verdict, judge

INTERVAL = 100_000
SECOND = 1_000_000


def start(ticket: int, check: int, **more: Any) -> Start:
    """A job that was called at its last check, in a process of its own."""
    values = {
        "at": check + 100, "shard": f"s{ticket}", "number": ticket, "generation": "g", "tolerance": 10_000,
        "heard": check - 5_000, "straight": True,
    }  # fmt: skip
    return Start(ticket=ticket, check=check, **{**values, **more})


def paced(count: int, *, first: int = 1, begin: int = SECOND, **more: Any) -> list[Start]:
    return [start(first + i, begin + i * INTERVAL, **more) for i in range(count)]


def verdict(starts: Sequence[Start], **more: Any) -> Verdict:
    return judge(Log(INTERVAL, starts, **more))


def crimes(found: Verdict) -> list[str]:
    return [what.partition(":")[0] for what in found.broken]


def test_even_starts_are_fine() -> None:
    found = verdict(paced(5))
    assert (found.starts, found.short, found.broken, found.least) == (5, 0, [], 1.0)


def test_a_job_may_begin_a_tolerance_late() -> None:
    found = verdict([start(1, SECOND + 10_000), start(2, SECOND + INTERVAL)])
    assert (found.short, found.broken) == (0, [])


def test_two_jobs_too_close_together_are_convicted() -> None:
    found = verdict([start(1, SECOND), start(2, SECOND + 89_000)])
    assert crimes(found) == ["spacing"]
    assert found.unexplained == 1


def test_a_job_that_was_stopped_after_its_last_check_is_allowed_for() -> None:
    late = start(1, SECOND, at=SECOND + 95_000)
    found = verdict([late, start(2, SECOND + INTERVAL)], stops=[Stop("s1", SECOND + 50, SECOND + 94_000)])
    assert (found.short, found.stopped, found.frozen, found.broken) == (1, 1, 0, [])


def test_a_job_that_was_overtaken_while_stopped_is_allowed_for() -> None:
    late = start(1, SECOND, at=SECOND + INTERVAL + 50_000)
    stops = [Stop("s1", SECOND + 50, SECOND + INTERVAL + 49_000)]
    found = verdict([late, *paced(3, first=2, begin=SECOND + INTERVAL)], stops=stops)
    assert found.short == found.stopped == 2  # to the previous one, and to the next one
    assert found.broken == []


def test_a_stop_of_another_process_explains_nothing() -> None:
    late = start(1, SECOND, at=SECOND + 95_000)
    found = verdict([late, start(2, SECOND + INTERVAL)], stops=[Stop("s7", SECOND + 50, SECOND + 94_000)])
    assert (found.stopped, found.frozen) == (0, 1)


def test_a_stop_before_the_last_check_explains_nothing() -> None:
    stops = [Stop("s1", SECOND - 50_000, SECOND - 1), Stop("s2", SECOND, SECOND + 88_000)]
    found = verdict([start(1, SECOND), start(2, SECOND + 89_000)], stops=stops)
    assert crimes(found) == ["spacing"]
    assert (found.stopped, found.unexplained) == (0, 1)


def test_a_job_that_the_machine_froze_after_its_last_check_is_allowed_for() -> None:
    found = verdict([start(1, SECOND, at=SECOND + 30_000), start(2, SECOND + INTERVAL)])
    assert (found.short, found.frozen, found.unexplained, found.broken) == (1, 1, 0, [])


def test_a_job_that_was_checked_too_late_is_not_excused_by_being_frozen_as_well() -> None:
    found = verdict([start(1, SECOND + 20_000, at=SECOND + 30_000), start(2, SECOND + INTERVAL)])
    assert crimes(found) == ["spacing"]
    assert (found.frozen, found.unexplained) == (0, 1)


def test_a_job_that_waited_after_its_last_check_was_not_frozen() -> None:
    found = verdict([start(1, SECOND, at=SECOND + 30_000, straight=False), start(2, SECOND + INTERVAL)])
    assert crimes(found) == ["check"]


def test_a_call_cannot_arrive_before_its_last_check() -> None:
    assert crimes(verdict([start(1, SECOND, at=SECOND - 1_000)])) == ["clock"]


def test_a_process_that_says_how_badly_it_knows_the_clock_gets_that_much() -> None:
    starts = [start(1, SECOND + 25_000, tolerance=30_000), start(2, SECOND + INTERVAL)]
    found = verdict(starts)
    assert (found.short, found.widened, found.broken) == (1, 1, [])
    starts[0] = replace(starts[0], tolerance=20_000)
    assert crimes(verdict(starts)) == ["spacing"]


def test_one_early_start_is_allowed_for_a_loss() -> None:
    starts = [start(1, SECOND), *paced(3, begin=SECOND + 40_000, generation="h", number=7)]
    losses = [Loss(SECOND + 10_000, SECOND + 20_000)]
    found = verdict(starts, losses=losses)
    assert (found.short, found.lost, found.broken) == (1, 1, [])
    assert "record" in crimes(verdict(starts))
    early = start(4, SECOND + 2 * INTERVAL + 60_000, generation="h")
    assert crimes(verdict([*starts, early], losses=losses)) == ["spacing"]


def test_a_second_early_start_needs_a_second_loss() -> None:
    starts = [
        *paced(2),
        start(1, SECOND + 140_000, generation="h", number=7),
        *paced(2, begin=SECOND + 180_000, generation="i", number=8),
    ]
    first, second = Loss(SECOND + 110_000, SECOND + 120_000), Loss(SECOND + 150_000, SECOND + 160_000)
    assert verdict(starts, losses=[first, second]).lost == 2
    assert set(crimes(verdict(starts, losses=[first]))) == {"spacing", "record"}


def test_a_job_on_a_ticket_from_before_a_loss_is_allowed_for_after_it() -> None:
    granted_before = start(2, SECOND + INTERVAL)
    anew = paced(3, begin=SECOND + 60_000, generation="h", number=7)
    found = verdict(
        [start(1, SECOND - 1), granted_before, *anew], losses=[Loss(SECOND + 10_000, SECOND + 20_000)]
    )
    assert (found.old, found.lost, found.broken) == (2, 1, [])


def test_one_early_start_is_allowed_for_a_step_forward() -> None:
    starts = [*paced(2), *paced(2, first=3, begin=SECOND + INTERVAL + 30_000)]
    step = Step(SECOND + INTERVAL + 10_000, SECOND + INTERVAL + 20_000, SECOND)
    found = verdict(starts, steps=[step])
    assert (found.short, found.stepped, found.broken) == (1, 1, [])
    again = start(5, SECOND + 2 * INTERVAL + 60_000)
    assert crimes(verdict([*starts, again], steps=[step])) == ["spacing"]
    later = replace(step, begin=5 * SECOND, end=6 * SECOND)
    assert crimes(verdict(starts, steps=[later])) == ["spacing"]


def test_a_job_that_was_granted_its_slot_before_a_step_is_allowed_for_until_its_process_hears_of_it() -> None:
    granted_before = start(3, SECOND + 150_000, heard=SECOND + 90_000)
    starts = [*paced(2), granted_before, *paced(2, first=4, begin=SECOND + 2 * INTERVAL)]
    back = Step(SECOND + 110_000, SECOND + 120_000, -SECOND)
    found = verdict(starts, steps=[back])
    assert (found.short, found.stepped, found.broken) == (2, 2, [])
    starts[2] = replace(granted_before, heard=SECOND + 130_000)
    assert "spacing" in crimes(verdict(starts, steps=[back]))


def test_a_slot_that_starts_two_jobs_is_convicted() -> None:
    again = start(2, SECOND + 2 * INTERVAL, number=9)
    assert crimes(verdict([*paced(2), again])) == ["slot"]
    assert crimes(verdict([*paced(2), replace(again, generation="h")], losses=[Loss(0, 0)])) == []


def test_tickets_out_of_order_are_convicted() -> None:
    assert crimes(verdict([start(2, SECOND), start(1, SECOND + INTERVAL)])) == ["order"]


def test_calls_that_arrive_out_of_order_are_not_tickets_out_of_order() -> None:
    late = start(1, SECOND, at=SECOND + INTERVAL + 50_000)
    found = verdict([late, *paced(2, first=2, begin=SECOND + INTERVAL)])
    assert found.broken == []
    assert found.frozen == found.short == 2


def test_a_job_that_is_started_twice_is_convicted() -> None:
    starts = [start(1, SECOND, shard="s"), start(2, SECOND + INTERVAL, shard="s", number=1)]
    assert crimes(verdict(starts)) == ["call"]


@pytest.mark.parametrize(
    "report",
    [
        None,
        Report("s", 2, {"returned": 2}, lost=(3,)),
        Report("s", 2, {"returned": 2}, wrong=("call 3 raised KeyError()",)),
        Report("s", 2, {"returned": 1}),
        Report("s", 3, {"returned": 3}),
    ],
)
def test_a_process_that_lived_must_say_that_all_its_calls_ended(report: Report | None) -> None:
    starts = paced(2, shard="s")
    fine = Report("s", 2, {"returned": 2, "StoreUnavailable": 1})
    assert verdict(starts, live=["s"], reports=[fine]).broken == []
    assert crimes(verdict(starts, live=["s"], reports=[report] if report else [])) == ["call"]


def test_a_queue_that_stays_still_after_the_last_fault_is_convicted() -> None:
    starts = paced(5)
    assert verdict(starts, last_fault=SECOND + INTERVAL, again=3).broken == []
    assert crimes(verdict(starts, last_fault=SECOND + INTERVAL, again=4)) == ["liveness"]

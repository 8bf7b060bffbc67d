"""The audit finds what was planted and nothing else, wherever blocks end."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import screens
from intervalq.errors import InvalidInterval, InvalidOption, MissingExtra
from spark import planted_logs as logs
from spark.log_judge import judge, random_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from intervalq.spark._audit.result import Audit

BY_KEY = {"key_twice", "attempt_skipped", "attempt_order", "attempt_overlap", "replay_unknown"}


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> Audit:
    """One audit of all planted logs together."""
    return logs.audited(spark)


def kinds_of(audit: Audit, queue: str) -> dict[str, int]:
    """The findings in one queue."""
    found: Counter[str] = Counter()
    for (name, _), part in audit.tally.days.items():
        if name == queue:
            found.update(part.kinds)
    for kind in BY_KEY:
        everything = audit.violations | audit.notes
        if kind in everything and queue in {example.queue for example in everything[kind].examples}:
            found[kind] = everything[kind].count
    return dict(found)


def test_everything_that_can_be_looked_for_is_planted(judged: Audit) -> None:
    from intervalq.spark._audit.kinds import KINDS

    assert judged.not_checked == {}
    elsewhere = {
        "call_refused",
        "call_failed",
        "call_retried",
        "row_replayed",
        "clock_off",
        "host_early",
        "interval_guessed",
    }
    assert {kind.name for kind in KINDS} == logs.FAULTS.keys() | elsewhere
    assert sum(kind.violation for kind in KINDS) >= 20


def test_a_clean_log_has_no_violation_and_its_notes(judged: Audit) -> None:
    found = kinds_of(judged, "clean")
    assert found == dict.fromkeys(logs.USUAL, 1) | {"tickets_unused": 6, "call_failed": 2}
    assert judged.notes["row_replayed"].count == len(logs.FAULTS) + 1  # which have no day to be counted in


@pytest.mark.parametrize("kind", [*logs.FAULTS])
def test_each_fault_is_found_as_what_it_is(judged: Audit, kind: str) -> None:
    queue = "" if kind == "queue_missing" else kind
    found = kinds_of(judged, queue)
    everything = judged.violations | judged.notes
    if kind == "clock_jumped":
        assert all(example.what.startswith("clock_jumped-right") for example in everything[kind].examples)
        found[kind] = everything[kind].count
    if kind == "start_missing":
        assert found.pop("call_failed", 0) == 2
    assert found[kind] == logs.FAULTS[kind][1]
    assert found.keys() - (logs.USUAL - {kind}) == {kind, *logs.COMPANY.get(kind, ())}
    assert everything[kind].examples


def test_nothing_is_found_in_a_queue_that_has_another_fault(judged: Audit) -> None:
    """Kinds that imply no others are found as often as they were planted, in the whole log."""
    company = set().union(*logs.COMPANY.values())
    everything = {**judged.violations, **judged.notes}
    for kind, (_, times) in logs.FAULTS.items():
        if kind not in company | logs.USUAL:
            assert everything[kind].count == times, kind


def test_clocks_are_judged_by_the_slots(judged: Audit) -> None:
    offsets = {clock.host: clock.offset for clock in judged.tally.facts.clocks}
    assert offsets["clean-fast"] == pytest.approx(3.0005, abs=0.0003)
    assert offsets["clean-right"] == pytest.approx(0.0005, abs=0.0003)
    part = next(part for (queue, _), part in judged.tally.days.items() if queue == "clean")
    assert part.late.most == pytest.approx(0.0012, abs=0.0003)
    assert "clock_off" in judged.notes


def test_the_outcome_is_json_and_a_table(judged: Audit) -> None:
    from rich.console import Console

    answer = json.loads(json.dumps(judged.to_dict(), allow_nan=False))
    assert answer["ok"] is judged.ok is False
    assert answer["rows"] == len(logs.planted())
    assert answer["violations"]["slot_twice"]["count"] == 1
    assert answer["violations"]["slot_twice"]["examples"][0]["ticket"] == 21
    console = Console(width=250, record=True, file=StringIO())
    judged.show(console)
    text = console.export_text()
    assert "slot_twice" in text
    assert "a slot that started two jobs" in text


def test_the_page_is_complete_in_itself(judged: Audit, tmp_path: Path) -> None:
    text = judged.write(tmp_path / "report.html").read_text()
    assert text.index("<svg") < text.index("<table")  # the plot comes first
    for reported in (
        "Starts a minute",
        "Gaps between starts",
        "Milliseconds from slot",
        "Share of each shard",
    ):
        assert reported in text
    assert all(kind in text for kind in logs.FAULTS)
    assert screens.labels(text) == screens.kept("audit.png"), "run `python tests/screens.py audit`"
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)|@import|<script|<link""", text)


def test_names_do_nothing_to_a_page_or_a_terminal(judged: Audit) -> None:
    from intervalq.spark._audit.kinds import Example
    from intervalq.spark._audit.report.page import page
    from intervalq.spark._audit.report.text import place

    found = judged.violations["gap_short"]
    found.examples.insert(0, Example("<b>\x1b[31m", 1, None))
    try:
        assert "<b>" not in page(judged)
        assert "\x1b" not in place(found.examples[0])
    finally:
        del found.examples[0]


def test_what_is_missing_for_a_page_is_said(
    judged: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"intervalq\[report\]"):
        judged.write(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


# --- against another judge ------------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "held"), [(4, 1 << 20), (1 << 20, 5)])
def test_random_logs_are_judged_as_another_judge_does(spark: SparkSession, block: int, held: int) -> None:
    """There are many edges, or none: blocks of four intervals, or one for all, judged five rows at a time."""
    from intervalq.spark._audit.audit import audit

    dice = random.Random(20_261)
    queues = {f"q{number}": random_log(f"q{number}", dice) for number in range(60)}
    rows = [row for log in queues.values() for row in log]
    found = audit(
        spark,
        logs.frame(spark, rows),
        interval=1,
        max_running=3,
        grace=1.0,
        unique_keys=False,
        now=logs.NOW,
        _block=block,
        _held=held,
    )
    assert (found.tally.facts.queues["q0"].block < 10) is (block == 4)
    kinds = set(judge(rows, reach=2, most=3, grace=1.0))
    assert {
        "crowded",
        "slot_twice",
        "ticket_twice",
        "queue_restarted",
        "slot_order",
        "cool_down_broken",
    } <= kinds
    seen = {
        "gap_short",
        "order_inverted",
        "slot_shared",
        "slots_close",
        "over_max_running",
        "tickets_unused",
        *kinds,
    }
    for queue, log in queues.items():
        mine = {kind: count for kind, count in kinds_of(found, queue).items() if kind in seen}
        assert mine == judge(log, reach=2, most=3, grace=1.0), queue
        gaps = [part.gaps.count for (name, _), part in found.tally.days.items() if name == queue]
        assert sum(gaps) == len(log) - 1


# --- what may be given ----------------------------------------------------------------------------------


def test_results_of_a_run_are_a_log(spark: SparkSession, tmp_path: Path) -> None:
    from intervalq.spark._audit.audit import audit

    results = [
        {"job": {"id": number}, "shard": number % 2, "ticket": number + 1, "due": logs.FIRST + number,
         "started": logs.FIRST + number + 0.01, "ended": logs.FIRST + number + 0.5, "exit_code": number % 5,
         "stdout": "", "stderr": "", "attempt": 1}
        for number in range(20)
    ]  # fmt: skip
    results[7]["ticket"] = 7
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(result) + "\n" for result in results))
    found = audit(spark, path, queue="numbers", now=logs.NOW)
    assert {name: one.count for name, one in found.violations.items()} == {"ticket_twice": 1}
    assert found.violations["ticket_twice"].examples[0].queue == "numbers"
    assert found.tally.facts.queues["numbers"].interval == 1.0
    assert {"interval_guessed", "call_failed"} == found.notes.keys()
    assert found.not_checked["key_twice"] == "the log has no key"
    assert found.not_checked["clock_off"] == "the log has no host"
    assert found.starts == 20


def test_the_struct_of_the_pipeline_is_a_log(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from intervalq.spark._audit.log import log_of
    from intervalq.spark._paced.results import LOG_DDL

    inside = ("k", 1, 1.0, 2.0, 3.0, "h", 7, 2, 1, False, "reset")
    df = spark.createDataFrame([("x", inside)], f"key string, _iq {LOG_DDL}").withColumn(
        "day", F.lit("2026-11-21")
    )
    flat, known = log_of(df, queue="q")
    row = flat.first()
    assert row is not None
    assert (row.queue, row.key, row.ticket, row.shard, row.status) == ("q", "k", 1, "h:7", "failed")
    assert str(row.day) == "2026-11-21"
    assert "attempt" not in known  # the rows of earlier attempts are not in there
    assert {"key", "host", "day", "replayed", "calls"} <= known


def test_what_can_not_be_judged_is_refused(spark: SparkSession) -> None:
    from intervalq.spark._audit.audit import audit

    df = logs.frame(spark, [logs.start("q", 0), logs.start("q", 1)]).drop("due")
    with pytest.raises(InvalidInterval, match="give it with interval="):
        audit(spark, df, now=logs.NOW)
    with pytest.raises(InvalidOption, match="no job run"):
        audit(spark, df, max_running=0)
    with pytest.raises(InvalidOption, match="lets no job start"):
        audit(spark, df, burst=0)
    with pytest.raises(InvalidOption, match="name the struct with column="):
        audit(spark, df.drop("started"))


def test_an_empty_log_has_nothing_wrong_and_nothing_checked(spark: SparkSession) -> None:
    from intervalq.spark._audit.audit import audit

    found = audit(spark, logs.frame(spark, []), interval=1)
    assert (found.ok, found.rows, found.starts) == (True, 0, 0)
    assert "slot_twice" in found.not_checked
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("block", [4, 1 << 20])
def test_a_burst_comes_in_any_order_and_catches_up(spark: SparkSession, block: int) -> None:
    """After each pause of ten intervals, five starts come at once, with slots up to four intervals back."""
    from intervalq.spark._audit.audit import audit

    rows: list[logs.Row] = []
    for number in range(40):
        row = logs.start("q", number)
        burst, place = divmod(number, 5)
        row["due"] = logs.FIRST + (15 * burst + place) * logs.INTERVAL
        row["started"] = logs.FIRST + (15 * burst + 4) * logs.INTERVAL + 0.0001 * (-place % 5)
        row |= {"ended": row["started"] + 0.01, "host": "here"}
        rows.append(row)
    settings: dict[str, Any] = {"interval": logs.INTERVAL, "now": logs.NOW, "_block": block}
    assert audit(spark, logs.frame(spark, rows), burst=5, **settings).ok
    assert {"start_late", "gap_short", "order_inverted"} <= audit(
        spark, logs.frame(spark, rows), **settings
    ).violations.keys()
    rows[12], rows[28] = (  # far from their slots: too early, and too late
        {**rows[12], "started": rows[28]["started"], "ended": rows[28]["ended"]},
        {**rows[28], "started": rows[12]["started"], "ended": rows[12]["ended"]},
    )
    found = audit(spark, logs.frame(spark, rows), burst=5, **settings).violations.keys()
    assert {"start_late", "order_inverted"} <= found

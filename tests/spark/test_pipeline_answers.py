"""A pipeline whose answers don't fit its schema: few are paid for, the reasons are said, and none is lost."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from intervalq.cli._app import run_app
from intervalq.cli._pipeline.show import words
from intervalq.ledger._large import LargeAnswers
from intervalq.ledger.rules import Ended, Record
from intervalq.pipeline import Look, Watch, read_spec, run
from intervalq.pipeline._guard import Guard
from intervalq.pipeline._layout import Layout
from intervalq.pipeline._reasons import Sample
from spark.pipelines import Small, unaudited
from spark.stages import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _run(small: Small) -> object:
    """Run it as users do; returns the exit code."""
    try:
        return run_app(["pipeline", "run", str(small.file)])
    except SystemExit as ended:
        return ended.code


def _mend(small: Small) -> None:
    spec = small.file.read_text()
    assert "size int" in spec
    small.file.write_text(spec.replace("size int", "size string"))


def test_a_wrong_schema_costs_few_calls_and_a_mended_one_none(
    spark: SparkSession, small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    # A name of its own: Python workers are kept, and those of other tests have seen answers that fitted.
    small.file.write_text(small.file.read_text().replace('name = "visits"', 'name = "wrong"'))
    small.set("odd", "other", *(f"name{n}" for n in range(51)))
    for _ in range(2):  # the second time, both rows are called again: the function may be mended
        assert _run(small) == 1
        error = capsys.readouterr().err
        assert "TooManyFailures: 2 rows had answers that don't fit" in error
        why = "column size is int32: 'large' is a str, not a whole number"
        assert why in error
        page = small.folder / "out" / "report.html"
        assert f"why rows failed: {page}" in error
        assert escape(why) in page.read_text()
        reported = json.loads(page.with_suffix(".json").read_text())
        (reason,) = reported["reasons"]
        assert (reported["ok"], reason["rows"], why in reason["error"]) == (False, 2, True)
        page.unlink()
    assert sum(small.called().values()) <= 4
    before = small.called()

    _mend(small)
    outcome = run(read_spec(small.file), spark=spark)
    kept = [key for key, number in before.items() if number == 2] or list(before)
    assert outcome.results == 51
    assert outcome.passes[0].replayed == len(kept)
    assert outcome.audit is not None
    assert outcome.audit["violations"] == {}
    assert {key: number for key, number in small.called().items() if key not in before} == dict.fromkeys(
        small.callable - before.keys(), 1
    )


def test_an_odd_answer_is_a_reason_and_is_not_lost(
    spark: SparkSession, small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    small.set("odd", "name5")
    small.set("bad", "name6", "name7")
    with unaudited():
        assert _run(small) == 1
    printed = capsys.readouterr().out
    assert "2 failed: RuntimeError: refused" in printed
    assert "for example row 'k6': RuntimeError: refused" in printed
    assert "'large' is a str, not a whole number" in printed
    reported = json.loads((small.folder / "out" / "report.json").read_text())
    assert [(one["rows"], one["key"]) for one in reported["passes"][0]["reasons"]] == [(2, "k6"), (1, "k5")]

    small.set("bad")
    small.set("odd", "name6", "name7")
    _mend(small)
    outcome = run(read_spec(small.file), spark=spark)
    assert (outcome.before, outcome.results, outcome.failed) == (48, 3, 0)
    assert small.called() == Counter(small.callable) + Counter(["k6", "k7"])
    assert outcome.audit is not None
    assert (outcome.audit["starts"], outcome.audit["violations"]) == (53, {})


def test_files_of_large_answers_go_with_their_rows(small: Small) -> None:
    """Once results are published, only answers that didn't fit are still needed."""
    spec = read_spec(small.file)
    layout = Layout(spec.output)
    folder, place = layout.answers()
    files = LargeAnswers(folder, spec.name, place)

    def ended(key: str, *, failed: bool) -> Ended:
        more = ',"error":"BadResult: x"' if failed else ""
        text = f'{{"answer":{{"$file":"{files.write(key, "1")}"}},"schema":"s","log":[]{more}}}'
        return Ended(key, text, failed)

    ask(spec.store, Record("s", 1, (ended("a", failed=False), ended("b", failed=True))), spec.name)
    assert len(files.names()) == 2
    with Guard(spec, layout, Watch()) as guard:
        guard.forget(has_unfit=True)
        assert len(files.names()) == 1
        guard.forget_errors()
        assert len(files.names()) == 1
        guard.forget(has_unfit=False)
        assert files.names() == []
    assert not Path(files.place).exists()


def test_without_a_change_it_is_called_again(spark: SparkSession, small: Small) -> None:
    small.set("odd", "name5")
    with unaudited():
        run(read_spec(small.file), spark=spark)
        small.set("odd")
        outcome = run(read_spec(small.file), spark=spark)
    assert (outcome.before, outcome.results, outcome.failed) == (50, 1, 0)
    assert small.called() == Counter(small.callable) + Counter(["k5"])

    # Published results prove nothing about another schema.
    with (small.folder / "visits.jsonl").open("a") as rows:
        rows.writelines(json.dumps({"id": f"new{n}", "name": "new", "n": n}) + "\n" for n in range(20))
    small.file.write_text(small.file.read_text().replace("again string", "again int"))
    before = sum(small.called().values())
    with pytest.raises(Exception, match="TooManyFailures: 2 rows had answers that don't fit"):
        run(read_spec(small.file), spark=spark)
    assert sum(small.called().values()) == before + 2


def test_the_commonest_reason_is_seen_while_it_runs(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    sample = Sample("r", url)
    assert sample.at(0) is None
    assert sample.at(3) is None, "the ledger is gone"
    errors = ["RuntimeError: no 1", "RuntimeError: no 22", "ValueError: x"]
    ends = [
        Ended(f"f{n}", json.dumps({"error": error, "log": []}), failed=True) for n, error in enumerate(errors)
    ]
    ask(url, Record("s", 1, (*ends, Ended("ok", '{"answer":1,"log":[]}'))))
    sample = Sample("r", url)
    assert sample.at(3) == "RuntimeError: no #"
    ask(
        url, Record("s", 1, tuple(Ended(f"g{n}", '{"error":"ValueError: x"}', failed=True) for n in range(9)))
    )
    assert sample.at(12) == "RuntimeError: no #", "it is not read again at once"
    look = Look(
        rows=20, done=1, failed=12, in_flight=0, waiting=7, used=1, possible=1, rate=1, left=7, is_held=False,
        reason=sample.at(12),
    )  # fmt: skip
    assert "12 errors (most: RuntimeError: no #)" in words(look)

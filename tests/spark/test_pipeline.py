"""A pipeline from its spec to its report: missing rows are called, once, wherever an earlier run died."""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

import intervalq
from intervalq.cli._app import run_app
from intervalq.cli._pipeline.command import _signals
from intervalq.errors import InvalidOption
from intervalq.ledger import Ledger
from intervalq.pipeline import Look, Watch, _guard, _run, read_spec, run
from intervalq.pipeline._guard import Guard
from intervalq.pipeline._layout import Layout
from intervalq.pipeline._published import Tables
from spark import clusters
from spark.pipelines import Small, unaudited
from spark.programs import Program, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAIN = Path(intervalq.__file__).parent / "cli" / "_pipeline" / "__main__.py"


def _once(small: Small, *, but: frozenset[str] = frozenset()) -> bool:
    return {key: count for key, count in small.called().items() if key not in but} == dict.fromkeys(
        small.callable - but, 1
    )


def _command(
    small: Small, capsys: pytest.CaptureFixture[str], what: str = "run"
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = -1
    try:
        code = run_app(["pipeline", what, str(small.file), "--json"])
    except SystemExit as ended:
        code = cast("int", ended.code)
    return code, json.loads(capsys.readouterr().out)


def test_only_what_has_no_result_is_called(
    spark: SparkSession, small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    small.set("bad", "name5", "name6")
    with unaudited():
        code, reported = _command(small, capsys)
    assert _once(small)
    assert (code, reported["ok"], reported["rows"], reported["duplicates"], reported["before"]) == (
        1,
        False,
        60,
        2,
        0,
    )
    assert reported["rejected"] == small.rejected
    assert (reported["results"], reported["failed"]) == (49, 2)
    reasons = Counter(row["reason"] for row in small.table("rejects"))
    assert reasons == {**small.rejected, "call_failed": 2}
    failed = [row for row in small.table("rejects") if row["reason"] == "call_failed"]
    assert {(row["key"], row["error"]) for row in failed} == {
        ("k5", "RuntimeError: refused"), ("k6", "RuntimeError: refused"),
    }  # fmt: skip
    assert json.loads(failed[0]["row"]).keys() == {"id", "n", "name"}

    small.set("bad")
    code, reported = _command(small, capsys)
    assert small.called() == Counter(small.callable) + Counter(["k5", "k6"])
    assert (code, reported["before"], reported["results"], reported["failed"]) == (1, 49, 2, 0)
    assert (reported["audit"]["starts"], reported["audit"]["violations"]) == (53, {})
    report = json.loads((small.folder / "out" / "report.json").read_text())
    assert report["audit"]["starts"] == 53
    assert reported["rejected"] == small.rejected
    results = small.table("results")
    assert {row["id"] for row in results} == small.callable
    assert len(results) == 51
    assert results[0].keys() == {"id", "n", "name", "size", "again", "day", "pass"}
    assert len(small.table("rejects")) == 9  # none is listed twice
    attempts = Counter((row["attempt"], row["status"]) for row in small.table("log"))
    assert attempts == {(1, "ok"): 49, (1, "failed"): 2, (2, "ok"): 2}

    rows = [row for row in (small.folder / "visits.jsonl").read_text().splitlines() if '"name0"' in row]
    (small.folder / "visits.jsonl").write_text("\n".join(rows))
    with unaudited():
        code, reported = _command(small, capsys)
    assert (code, reported["ok"], reported["passes"], reported["before"]) == (0, True, [], 1)
    assert sum(small.called().values()) == 53
    assert Path(reported["report"]).read_text().startswith("<!")
    code, reported = _command(small, capsys, "audit")
    assert (code, reported["ok"], reported["starts"]) == (0, True, 53)


def _dies(monkeypatch: pytest.MonkeyPatch, where: object, name: str, call: int = 1) -> Callable[[], None]:
    """Make the call with this number die; returns a function that undoes it."""
    real, calls = getattr(where, name), 0

    def dying(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise SystemExit("killed")
        return real(*args, **more)

    monkeypatch.setattr(where, name, dying)
    return lambda: monkeypatch.setattr(where, name, real)


async def _kept(small: Small) -> set[str]:
    """The rows whose results are in the ledger."""
    async with Ledger("visits", small.folder / "state.db") as ledger:
        return {row.key async for row in ledger.rows() if row.state == "done"}


def test_a_run_may_die_anywhere_and_the_next_goes_on(
    spark: SparkSession, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_spec(small.file)
    layout = Layout(spec.output)

    def state() -> list[tuple[bool, bool]]:
        return [(one.complete, one.published) for one in layout.passes()]

    # During the calls, the Python worker of one task is killed.
    small.set("deadly", "name30")
    with pytest.raises(Exception, match="worker exited unexpectedly"):
        run(spec, spark=spark)
    small.set("deadly")
    before = small.called()
    kept = anyio.run(_kept, small)
    assert state() == [(False, False)]
    assert before["k30"] == 1
    assert not layout.has("results")

    # When all rows are called, and nothing is published. Calls whose end was recorded are not repeated; how
    # many the killed worker had made and not recorded yet depends on the machine.
    mend = _dies(monkeypatch, _run, "publish")
    with pytest.raises(SystemExit):
        run(spec, spark=spark)
    mend()
    again = {key for key, count in small.called().items() if count > 1}
    assert again == before.keys() - kept
    assert "k30" in again
    assert kept
    assert set(small.called()) == small.callable
    assert state() == [(True, False)]
    calls = small.called()

    # Between two tables.
    mend = _dies(monkeypatch, Tables, "replace", 2)
    with pytest.raises(SystemExit):
        run(spec, spark=spark)
    mend()
    assert (layout.has("results"), layout.has("log"), state()) == (True, False, [(True, False)])

    # When it is marked as published, before the ledger forgets it.
    mend = _dies(monkeypatch, Guard, "forget")
    with pytest.raises(SystemExit):
        run(spec, spark=spark)
    mend()
    assert state() == [(True, True)]

    # While its folder is removed.
    def removed_in_part(self: Layout, id_: str) -> None:
        (small.folder / "out" / "passes" / f"pass={id_}" / "_SUCCESS").unlink()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Layout, "remove", removed_in_part)
        with pytest.raises(SystemExit):
            run(spec, spark=spark)
    assert state() == [(False, True)]

    outcome = run(spec, spark=spark)
    assert state() == []
    assert (outcome.passes, outcome.before, outcome.rejected) == ((), 51, small.rejected)
    assert small.called() == calls
    assert Counter(row["id"] for row in small.table("results")) == Counter(small.callable)
    assert Counter(row["key"] for row in small.table("log")) == Counter(small.callable)
    assert outcome.audit is not None
    assert outcome.audit["ok"], outcome.audit["violations"]


class _Stops(Watch):
    """Stops a run once some rows are called, and from then on lets calls end that have begun."""

    def __init__(self, small: Small) -> None:
        self.stop = threading.Event()
        self.looks: list[Look] = []
        self.stopping = False
        self._small = small

    def looked(self, look: Look) -> None:
        self.looks.append(look)
        if self.stopping:  # tasks learn of it with their next result: until then, they begin a few more
            self._small.release()
        elif self._small.called():
            self.stop.set()

    def note(self, text: str) -> None:
        self.stopping = self.stopping or text.startswith("stopping")


def test_a_run_that_is_stopped_lets_calls_end_and_goes_on_later(spark: SparkSession, small: Small) -> None:
    """Its output belongs to a file system that only Hadoop knows, and that ends in the test's folder."""
    (small.folder / "out").mkdir()
    spark.conf.set(f"fs.viewfs.mounttable.{small.folder.name}.link./out", f"file://{small.folder}/out")
    small.file.write_text(small.file.read_text().replace('"out"', f'"viewfs://{small.folder.name}/out"'))
    small.set("slow", *(f"name{number}" for number in range(51)), "other")
    watch = _Stops(small)
    spec = read_spec(small.file)
    outcome = run(spec, spark=spark, watch=watch, stop=watch.stop)
    assert (outcome.stopped, outcome.ok, outcome.passes) == (True, False, ())
    assert 0 < len(small.called()) < 51
    assert watch.looks[-1].rows == 51
    small.set("slow")
    outcome = run(spec, spark=spark)
    assert _once(small)
    assert (outcome.stopped, outcome.results, outcome.passes[0].replayed > 0) == (False, 51, True)
    assert outcome.report is not None
    assert outcome.report.startswith("viewfs://")
    assert {row["id"] for row in small.table("results")} == small.callable
    with unaudited():
        assert run(spec, spark=spark).before == 51
    assert (small.folder / "out" / "report.json").exists()
    assert not list((small.folder / "out" / "passes").iterdir())


def test_ctrl_c_of_the_command(small: Small, java_options: str) -> None:
    """This sends the real signal to a real process, started as spark-submit does it."""
    small.set("slow", *(f"name{number}" for number in range(51)), "other")
    words = ["--master", "local[2]"]
    words += [
        word for key, value in clusters.small(java_options).items() for word in ("--conf", f"{key}={value}")
    ]
    program = Program(
        MAIN, (str(small.file),), environment(PYSPARK_SUBMIT_ARGS=shlex.join([*words, "pyspark-shell"]))
    )
    try:
        program.until(small.called, "a call")
        os.kill(program.pid, signal.SIGINT)
        program.until(lambda: "stopping" in program.stderr, "it heard")
        small.set("slow")
        ended = program.wait()
    finally:
        program.close()
    assert ended.returncode == 130, ended.stderr
    assert f"to go on: intervalq pipeline run {small.file}" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert set(small.called().values()) == {1}


def test_signals_are_heeded_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _signals() as (stop, code):
        signal.raise_signal(signal.SIGTERM)
        assert (stop.is_set(), code) == (True, [143])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_run_at_a_time(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_spec(small.file)
    layout = Layout(spec.output)
    monkeypatch.setattr(_guard, "_PATIENCE", 0.0)
    with (
        Guard(spec, layout, Watch()),
        pytest.raises(InvalidOption, match="another run of pipeline visits is active"),
    ):
        Guard(spec, layout, Watch()).__enter__()
    with Guard(spec, layout, Watch()):
        pass  # the first one left


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('key = "id"', 'key = "number"', r"\[input\] key = 'number' is not a column of the input: it has"),
        ('"n >= 0"', '"m >= 0"', r"\[input.require\] positive is not a condition on the input's columns"),
        ('"n >= 0"', '"n >"', r"\[input.require\] positive is not a condition"),
        ("size int", "size integer big", r"\[call\] schema = .* is not valid DDL"),
        ("size int", "day int", r"\[call\] schema = .* has day, which the output uses"),
        ("size int", "name int", r"two columns name"),
    ],
)  # fmt: skip
def test_what_only_spark_can_tell(
    spark: SparkSession, small: Small, old: str, new: str, message: str
) -> None:
    small.file.write_text(small.file.read_text().replace(old, new))
    with pytest.raises(InvalidOption, match=message):
        run(read_spec(small.file), spark=spark)
    assert not small.called()

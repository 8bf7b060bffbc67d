"""What users see of a running pipeline: a line, a bar, and the reason if Spark fails."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from intervalq import _show
from intervalq.cli._pipeline import show as _pipeline_show
from intervalq.cli._pipeline.show import Bar, Lines, words
from intervalq.pipeline._watch import Looks
from intervalq.spark._compat import cause
from intervalq.spark._paced.progress import Progress


def _at(second: float, starts: int, done: int, failed: int = 0) -> Progress:
    return Progress(
        at=1e9 + second, interval=0.1, starts=starts, waiting=0, is_held=False, done=done, failed=failed,
        in_flight=3, unknown=0,
    )  # fmt: skip


def test_slots_count_from_the_first_start() -> None:
    looks = Looks(100)
    assert words(looks.add(_at(0, 40, 0))) == "0/100 done, 0/s, 100 waiting, 0 errors"
    looks.add(_at(20, 40, 0))  # Spark is slow
    look = looks.add(_at(24, 60, 18, 2))
    assert (look.used, look.possible, look.waiting, look.in_flight) == (20, 40, 77, 3)
    assert words(look) == "18/100 done, 0.833/s, 20 of 40 slots used, 80 waiting, 2 errors, 96s left"
    assert looks.add(_at(34, 160, 98, 2)).rate == 10.0  # of the last ten seconds


def test_a_bar_comes_and_goes_with_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = io.StringIO()
    made = Console(file=screen, force_terminal=True, width=120, markup=False, highlight=False)
    for module in _show, _pipeline_show:
        monkeypatch.setattr(module, "console", lambda **_: made)
    bar, looks = Bar(), Looks(100)
    bar.note("one step")
    bar.looked(looks.add(_at(0, 0, 0)))
    bar.looked(looks.add(_at(1, 10, 10)))
    bar.note("another \x1b[2J")
    bar.called()
    bar.called()
    assert "intervalq: one step" in screen.getvalue()
    assert "10/100 done" in screen.getvalue()
    assert "another \\x1b[2J" in screen.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines, looks = Lines(), Looks(9)
    lines.looked(looks.add(_at(0, 0, 0)))
    lines.looked(looks.add(_at(1, 1, 1)))
    assert capsys.readouterr().err == "intervalq: 0/9 done, 0/s, 9 waiting, 0 errors\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "An error occurred while calling o2.parquet.\n: org.x.SparkException: it broke\n\tat x",
            "org.x.Spark",
        ),
        ("\n  File x\nintervalq.errors.StoreError: gone\n\tat org.x", "intervalq.errors.StoreError: gone"),
        ("Traceback x\n  File x\nintervalq._run_errors.RunChanged: no", "intervalq.errors.RunChanged: no"),
        (
            (
                "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                "  File \"x\"\n    ^^^\nModuleNotFoundError: No module named 'intervalq'\n SQLSTATE: 38000"
            ),
            "ModuleNotFoundError: No module named 'intervalq'",
        ),
        ("", "it gave no reason"),
    ],
)
def test_the_reason_of_a_failure_is_a_line(text: str, reason: str) -> None:
    assert cause(RuntimeError(text)).startswith(reason)

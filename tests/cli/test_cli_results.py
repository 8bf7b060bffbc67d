"""Results files: what is read back from what was written, whole or cut off."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.command_line import FIELDS
from intervalq.cli._run.jobs import Job
from intervalq.cli._run.results import BadResults, Done, Result, open_output, read_results, write_all


def line(job: str | dict[str, Any], exit_code: int | None = 0, attempt: int = 1) -> str:
    return Result(
        job=job, shard=1, ticket=1, due=1.0, started=1.0, ended=2.0, exit_code=exit_code, stdout="",
        stderr="", attempt=attempt,
    ).to_json()  # fmt: skip


def attempts(done: Done, *jobs: str) -> list[int | None]:
    choose = done.chooser()
    return [choose(Job(job, ())) for job in jobs]


def test_a_result_has_its_fields_in_order_and_is_plain_ascii() -> None:
    text = line("\x1b[31m \x7f \x9b é")
    assert list(json.loads(text)) == FIELDS
    assert text.isascii()
    assert text.isprintable()


def test_jobs_that_ended_well_are_skipped_as_often_as_they_did(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{line('a')}\n{line('a')}\n\n{line('b', 1)}\n")
    done, whole = read_results(path)
    assert whole == path.stat().st_size
    assert attempts(done, "a", "b", "a", "a", "c") == [None, 2, None, 1, 1]


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ([("a", 1, 1)], [2]),
        ([("a", 1, 1), ("a", 0, 2)], [None]),
        ([("a", 1, 1), ("a", None, 2)], [3]),
        ([("a", 1, 3)], [4]),
        ([("a", 1, 3), ("a", 0, 6)], [None, 1]),
        ([("a", 1, 1), ("a", 1, 1)], [2, 2]),
        ([("a", 1, 1), ("a", 1, 1), ("a", 1, 2), ("a", 0, 2)], [None, 3]),
    ],
)
def test_attempts_are_counted_on(before: list[tuple[str, int | None, int]], then: list[int | None]) -> None:
    done = Done()
    for job, code, attempt in before:
        done.add(job, code, attempt)
    assert attempts(done, *(["a"] * len(then))) == then


def test_objects_are_the_same_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line({"b": 1, "a": 2}) + "\n")
    done, _ = read_results(path)
    assert done.chooser()(Job({"a": 2, "b": 1}, ())) is None


@settings(deadline=None)
@given(cut=st.integers(1, 500))
def test_a_line_that_was_cut_off_is_left_out_and_off(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    whole = f"{line('a')}\n".encode()
    path.write_bytes((whole + whole)[: len(whole) + min(cut, len(whole) - 2)])
    done, kept = read_results(path)
    assert kept == len(whole)
    assert attempts(done, "a", "a") == [None, 1]
    file = open_output(path, kept)
    write_all(file, whole)
    assert path.read_bytes() == whole + whole


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line("a"))
    done, whole = read_results(path)
    assert attempts(done, "a") == [None]
    write_all(open_output(path, whole), b"{}\n")
    assert path.read_text() == f"{line('a')}\n{{}}\n"


@pytest.mark.parametrize(
    "broken",
    ["nonsense", "[]", "{}", '{"job": 1, "exit_code": 0, "attempt": 1}', line("a")[:-5]]
    + [json.dumps({"job": "a", "exit_code": code, "attempt": 1}) for code in ("0", True, 1.5)]
    + [json.dumps({"job": "a", "exit_code": 0, "attempt": attempt}) for attempt in (0, None, "1", True)],
)
def test_any_other_broken_line_is_an_error(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{line('a')}\n{broken}\n{line('b')}\n")
    with pytest.raises(BadResults, match=r"r\.jsonl, line 2: .*--resume takes what --output wrote"):
        read_results(path)


@settings(deadline=None)
@given(st.binary())
def test_any_file_is_results_or_a_documented_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(data)
    try:
        _, whole = read_results(path)
    except BadResults as error:
        assert error.number >= 1
    else:
        assert whole <= len(data)


def test_results_are_for_their_user_only(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    before = os.umask(0)
    try:
        os.close(open_output(path, None))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    os.close(open_output(path, None))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "a file that is there keeps its rights"

"""From lines to jobs: the job of each line, and that only documented errors are raised."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from intervalq import IntervalQueue
from intervalq.cli._run.input import Input
from intervalq.cli._run.jobs import MAX_LINE, BadLine, Lines
from intervalq.errors import InvalidOption


def words(line: str, *command: str) -> tuple[str, ...]:
    job = Lines("jobs.txt", command).job(line, 1)
    assert job is not None
    return job.argv


def refused(line: str, *command: str) -> str:
    with pytest.raises(BadLine) as caught:
        Lines("jobs.txt", command).job(line, 7)
    message = str(caught.value)
    assert message.startswith("jobs.txt, line 7: ")
    return message.removeprefix("jobs.txt, line 7: ")


def test_a_line_is_a_command_of_words() -> None:
    assert words("convert 'my file.png' -resize 50% out.png") == (
        "convert",
        "my file.png",
        "-resize",
        "50%",
        "out.png",
    )
    assert words("echo $HOME | cat  # no shell") == ("echo", "$HOME", "|", "cat", "#", "no", "shell")


def test_a_line_goes_into_a_command() -> None:
    assert words("a b", "echo", "<{}>", "{}") == ("echo", "<a b>", "a b")
    assert words("it's", "echo") == ("echo", "it's"), "appended, and not split"
    assert words("  a ", "echo") == ("echo", "  a "), "as it is"


def test_fields_of_a_json_line_go_into_a_command() -> None:
    line = '{"id": 7, "name": "Ann Lee", "ok": true, "none": null, "tags": ["x"], "a-b": 1.5}'
    assert words(line, "get", "/users/{id}?name={name}", "{ok}{none}{tags}{a-b}") == (
        "get",
        "/users/7?name=Ann Lee",
        'truenull["x"]1.5',
    )
    assert words(line, "echo", "{}") == ("echo", line)
    assert words(line, "echo") == ("echo", line)
    job = Lines("jobs.txt", ("echo",)).job(line, 1)
    assert job is not None
    assert job.shown == json.loads(line)


def test_braces_that_are_no_fields_stay() -> None:
    assert words("f", "awk", "{ print $1 }", "{}") == ("awk", "{ print $1 }", "f")
    assert words("f", "awk", "{{print}}", "{}") == ("awk", "{print}", "f")
    assert words("f", "grep", "[0-9]{3}", "{}") == ("grep", "[0-9]{3}", "f")
    assert words("f", "echo", "{{}}", "{}") == ("echo", "{}", "f")


def test_equal_jobs_have_equal_keys() -> None:
    lines = Lines("jobs.txt", ("echo", "{a}"))
    one, other = lines.job('{"a": 1, "b": 2}', 1), lines.job('{"b":2,"a":1}', 2)
    assert one is not None
    assert other is not None
    assert one.key == other.key


def test_empty_lines_are_no_jobs() -> None:
    assert Lines("jobs.txt", ()).job("", 1) is None
    assert Lines("jobs.txt", ("echo", "{x}")).job(" \t", 1) is None


def test_bad_lines_say_what_is_wrong() -> None:
    assert "quote that is never closed" in refused("echo 'a")
    assert "backslash" in refused("echo a\\")
    assert "NUL" in refused("echo a\0b")
    assert "NUL" in refused('{"x": "a\\u0000"}', "echo", "{x}")
    assert "surrogate" in refused('{"x": "\\ud800"}', "echo", "{x}")
    assert refused('{"x": 1, "y": 2}', "echo", "{z}") == "has no field 'z'; it has 'x', 'y'"
    assert "not a JSON object" in refused("[1]", "echo", "{z}")
    assert "not a JSON object" in refused('{"x": 1', "echo", "{x}")
    assert "not a JSON object" in refused('{"x": NaN}', "echo", "{x}")
    assert "needs a command" in refused('{"x": 1}')


def test_json_may_be_nested_deeper_than_can_be_read() -> None:
    assert "not a JSON object" in refused('{"a":' * 100_000, "echo", "{a}")


COMMANDS = [(), ("echo",), ("echo", "{}"), ("echo", "{a}", "{}"), ("{}",)]


@settings(deadline=None)
@given(st.text() | st.from_regex(r"\{.*\}") | st.dictionaries(st.text(), st.text()).map(json.dumps))
@example('{"a": 1' + "0" * 5_000 + "}")  # more digits than Python reads
def test_any_line_is_a_job_or_a_documented_error(line: str) -> None:
    for command in COMMANDS:
        try:
            job = Lines("standard input", command).job(line, 3)
        except BadLine as error:
            assert str(error).startswith("standard input, line 3: ")
        else:
            assert (job is None) == (not line.strip())
            if job is not None:
                assert all(os.fsencode(word) is not None and "\0" not in word for word in job.argv)
                assert job.key == job.key
                json.dumps(job.shown, allow_nan=False)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_quoted_words_come_back(argv: list[str]) -> None:
    line = shlex.join(argv)
    job = Lines("jobs.txt", ()).job(line, 1)
    assert job is not None
    assert job.argv == tuple(argv)


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    source = Input(str(path))
    try:
        first = list(source.scan())
        assert first == list(source.scan()), "a file can be read twice"
    finally:
        source.close()
    assert [number for number, _ in first] == list(range(1, len(first) + 1))
    kept = b"\n".join(os.fsencode(line) for _, line in first)
    without = (
        data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").replace(b"\r\n", b"\n").removesuffix(b"\r")
    )
    assert kept.rstrip(b"\r\n") == without.rstrip(b"\r\n") or b"\r" in data


def test_a_line_may_be_long_but_not_endless(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_bytes(b"a\n" + b"b" * MAX_LINE + b"\n")
    source = Input(str(path))
    assert [len(line) for _, line in source.scan()] == [1, MAX_LINE]
    source.close()
    path.write_bytes(b"a\n" + b"b" * (MAX_LINE + 1))
    source = Input(str(path))
    with pytest.raises(BadLine, match="line 2: is longer than 1048576 bytes"):
        list(source.scan())
    source.close()


def test_a_job_costs_what_its_line_says() -> None:
    lines = Lines("jobs.txt", ("echo", "{}"), ("tokens={tokens}", "2"))
    job = lines.job('{"tokens": 1200}', 1)
    assert job is not None
    assert job.cost == {"starts": 2, "tokens": 1_200}
    job = Lines("jobs.txt", ("sleep",), ("{}",)).job("3", 1)
    assert job is not None
    assert (job.cost, job.argv) == (3, ("sleep", "3"))
    job = Lines("jobs.txt", ("echo", "{{x}}"), ("5",)).job("a", 1)
    assert job is not None
    assert job.cost == 5


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("5", "is not a JSON object, but --cost names the field {tokens}"),
        ('{"b": 1}', "has no field 'tokens'; it has 'b'"),
        ('{"tokens": 1.5}', "has an invalid cost: --cost 'tokens=1.5' must be a whole number"),
        ('{"tokens": -1}', "has an invalid cost: --cost 'tokens=-1' must be a whole number"),
        (
            '{"tokens": 1001}',
            "has an invalid cost: cost={'tokens': 1001} is more than the limit of 1000 tokens/m",
        ),
    ],
)
def test_lines_without_a_possible_cost(line: str, says: str) -> None:
    queue = IntervalQueue("q", limits=["1000 tokens/min"], store="memory://")
    lines = Lines("jobs.txt", ("echo",), ("tokens={tokens}",), lambda cost: queue._plan(cost=cost))
    with pytest.raises(BadLine, match=re.escape(says)):
        lines.job(line, 1)


def test_a_cost_that_no_job_can_have_is_refused_before_the_first_line() -> None:
    with pytest.raises(InvalidOption, match="--cost"):
        Lines("jobs.txt", (), ("tokens=many",))

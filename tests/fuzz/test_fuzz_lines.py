from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.material import fuzz, json_values, mutated, odd_text
from intervalq.cli._run import protocol
from intervalq.cli._run.children import _line
from intervalq.cli._run.input import Input, _Splitter
from intervalq.cli._run.jobs import MAX_LINE, BadLine, Job, Lines, key_of
from intervalq.cli._run.results import BadResults, Done, Result, open_output, read_results, write_all

DEEP = [f'{{"a": {"[" * depth}{"]" * depth}}}' for depth in (98, 99, 100, 900, 985, 990, 994, 100_000)]
COMMANDS = [
    (),
    ("echo",),
    ("echo", "{}"),
    ("echo", "{a}"),
    ("{a}-{b}", "{{a}}", "{"),
    ("{}{}",),
    ("{a-b_1}", "{}"),
]


def objects() -> st.SearchStrategy[str]:
    return st.dictionaries(st.sampled_from(["a", "b", "a-b_1", "", "é"]), json_values(), max_size=4).map(
        json.dumps
    )


def lines() -> st.SearchStrategy[str]:
    words = st.lists(st.sampled_from(["echo", "'a b'", '"', "\\", "{a}", "#", "$HOME", "é"]), max_size=4)
    return mutated(objects()) | mutated(words.map(" ".join)) | odd_text()


def words() -> st.SearchStrategy[tuple[str, ...]]:
    text = mutated(st.sampled_from(["{}", "{a}", "{{a}}", "echo"])).filter(lambda word: "\0" not in word)
    return st.sampled_from(COMMANDS) | st.lists(text, max_size=3).map(tuple)


def result_of(job: Job, attempt: int = 1) -> str:
    return Result(
        job=job.shown,
        shard=1,
        ticket=1,
        due=1.0,
        started=1.0,
        ended=1.0,
        exit_code=0,
        stdout="\x9b",
        stderr="é",
        attempt=attempt,
    ).to_json()


def with_examples(function: Callable[..., None]) -> Callable[..., None]:
    for line in (
        *DEEP,
        '{"a": 1e999}',
        '{"a": NaN}',
        '{"a": %s}' % ("9" * 5000),
        '{"a": "\\ud800"}',
        "\ud800",
    ):
        function = example(line=line, command=("echo", "{a}"))(function)
        function = example(line=line, command=("echo", "{}"))(function)
    return function


@fuzz(250)
@with_examples
@given(line=lines(), command=words())
def test_a_line_is_a_job_or_refused(line: str, command: tuple[str, ...]) -> None:
    """Its job can also be run, and its result can be written and read again."""
    try:
        job = Lines("input", command).job(line, 7)
    except BadLine as error:
        assert str(error).startswith("input, line 7: ")
        return
    if job is None:
        assert not line.strip()
        return
    assert all("\0" not in os.fsdecode(os.fsencode(word)) for word in job.argv)
    written = result_of(job, 3)
    assert written.isascii()
    assert written.isprintable()
    read = json.loads(written)["job"]
    assert read == job.shown
    assert key_of(read) == job.key
    again = Lines("input", command).job(line, 7)
    assert again == job


def deeper(frames: int, do: Callable[[], object]) -> object:
    """The result of a function that is called by a function that is called by a function..."""
    return deeper(frames - 1, do) if frames else do()


def test_a_deep_object_can_be_written_or_is_text(tmp_path: Path) -> None:
    """How deeply nested JSON Python reads and writes depends on the depth of the call stack."""
    path = tmp_path / "results.jsonl"
    for depth in range(1, 1_100):
        line = f'{{"a": {"[" * depth}{"]" * depth}}}'
        job = Lines("input", ("echo", "{}")).job(line, 1)
        assert job is not None
        assert (job.shown == line) is (depth > 99)
        deeper(100, lambda job=job: (result_of(job), job.key))  # type: ignore[misc]
        path.write_text(f'{{"exit_code": 0, "attempt": 1, "job": {line}}}\n')
        with suppress(BadResults):
            read_results(path)


@fuzz(150)
@example(data=b"x" * (MAX_LINE + 1), cuts=[1 << 16])
@example(data=b"x" * MAX_LINE + b"\n", cuts=[])
@given(
    data=st.lists(
        st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xff", b"\xef\xbb\xbf", b"\0", "é".encode()])
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 40)),
)
def test_lines_are_the_same_however_they_come(data: bytes, cuts: list[int]) -> None:
    def split(*chunks: bytes) -> list[tuple[int, str]] | str:
        splitter = _Splitter("input")
        found: list[tuple[int, str]] = []
        try:
            for chunk in chunks:
                found += splitter.feed(chunk)
            return found + list(splitter.end())
        except BadLine as error:
            return str(error)

    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    expected = split(data)
    assert split(*(data[start:end] for start, end in pairwise(at))) == expected
    if len(data) <= MAX_LINE and isinstance(expected, list):
        text = data.removeprefix(b"\xef\xbb\xbf").decode(errors="surrogateescape")
        pieces = text.split("\n")
        assert [line for _, line in expected] == [
            piece.removesuffix("\r")
            for piece in (pieces[:-1] if data.endswith(b"\n") or not data else pieces)
        ]
        assert [number for number, _ in expected] == list(range(1, len(expected) + 1))


def results() -> st.SearchStrategy[bytes]:
    one = st.builds(
        lambda job, code, attempt: json.dumps({"job": job, "exit_code": code, "attempt": attempt}),
        st.sampled_from(["a", "b", {"a": 1}]) | json_values(),
        st.sampled_from([0, 0, 1, -9, None, True, "0", 1.0]),
        st.sampled_from([1, 1, 2, 3, 0, True, None]) | st.integers(),
    )
    text = st.lists(mutated(one) | one).map("\n".join)
    return st.builds(
        lambda reported, end, tail: reported.encode(errors="surrogatepass") + end + tail,
        text,
        st.sampled_from([b"", b"\n", b"\r\n", b"\n\n"]),
        st.just(b"") | st.binary(max_size=9),
    )


@fuzz(150)
@example(
    written=b"".join(
        line.replace('{"a"', '{"exit_code": 0, "attempt": 1, "job"').encode() for line in DEEP[:1]
    )
)
@example(written=b'{"exit_code": 0, "attempt": 1, "job": {"a": %s}}\n' % (b"[" * 988 + b"]" * 988))
@example(written=b'{"exit_code": 0, "attempt": 1, "job": {"a": %s}}\n' % (b"[" * 992 + b"]" * 992))
@example(written=b'{"exit_code": 0, "attempt": 1, "job": {"a": %s}}\n' % (b"9" * 5000))
@given(written=results() | st.binary(max_size=60))
def test_a_results_file_is_read_or_refused(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(written)
    try:
        done, whole = read_results(path)
    except BadResults as error:
        assert str(error).startswith(f"{path}, line ")
        return
    assert whole <= len(written)
    assert whole == len(written) or b"\n" not in written[whole:]
    os.close(open_output(path, whole))
    kept = path.read_bytes()
    assert kept == written[:whole] + (b"" if not whole or written[:whole].endswith(b"\n") else b"\n")
    again, _ = read_results(path)
    for name in ("a", "b"):
        job = Job(name, (name,))
        assert [again.chooser()(job), again.chooser()(job)] == [done.chooser()(job), done.chooser()(job)]


@fuzz(150)
@given(jobs=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 3)), max_size=12))
def test_what_is_done_is_counted(tmp_path: Path, jobs: list[tuple[str, int, int]]) -> None:
    """A job that is in the input as often as it has succeeded is done."""
    path = tmp_path / "results.jsonl"
    path.write_text(
        "".join(
            json.dumps({"job": job, "exit_code": code, "attempt": attempt}) + "\n"
            for job, code, attempt in jobs
        )
    )
    choose = read_results(path)[0].chooser()
    for name in "ab":
        succeeded = sum(job == name and code == 0 for job, code, _ in jobs)
        job = Job(name, (name,))
        assert [choose(job) for _ in range(succeeded)] == [None] * succeeded
        assert choose(job) is not None
    assert Done().chooser()(Job("c", ())) == 1


Pipe = Callable[[bytes, int], list[dict[str, Any]]]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """A shard's end of the pipe: returns the messages that it reads from input in pieces of this size."""
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)  # of this process's own output

    async def heard(data: bytes, size: int) -> list[dict[str, Any]]:
        there, here = os.pipe()
        monkeypatch.setattr(protocol, "_IN", there)
        monkeypatch.setattr(protocol, "_CHUNK", size)
        pipes, messages = protocol.Pipes(), []

        def say() -> None:
            write_all(here, data)
            os.close(here)

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, say)
            while (message := await pipes.receive()) is not None:
                messages.append(message)
        os.close(there)
        return messages

    return lambda data, size: anyio.run(heard, data, size)


@fuzz(60)
@given(
    messages=st.lists(
        st.dictionaries(st.text(st.characters(), max_size=4), json_values(), max_size=3), max_size=5
    ),
    size=st.integers(5, 100),
)
def test_messages_to_a_shard_arrive_as_they_were_sent(
    pipe: Pipe, messages: list[dict[str, Any]], size: int
) -> None:
    sent = [_line(message) for message in messages]
    assert all(line.count(b"\n") == 1 and line.isascii() for line in sent)
    expected = [json.loads(line) for line in sent]
    assert repr(pipe(b"".join(sent), size)) == repr(expected)


@fuzz(100)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_input(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "input"
    path.write_bytes(data)
    source = Input(str(path))
    try:
        found = list(source.scan())

        async def come() -> list[tuple[int, str]]:
            return [line async for line in source.lines()]

        assert anyio.run(come) == found
    finally:
        source.close()

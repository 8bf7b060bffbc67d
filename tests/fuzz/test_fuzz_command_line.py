from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

import anyio
import click
import psycopg
import pytest
from anyio.abc import TaskStatus
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.guard import kept_in
from fuzz.material import CANARY, fuzz, mutated, odd_text
from intervalq.cli._app import _COMMANDS, app, run_app
from intervalq.cli._run import session as _session
from intervalq.cli._work import worker as _work_run
from intervalq.rules import Drop, Hold, Settings
from intervalq.service import Addresses
from intervalq.store import open_store
from intervalq.tasks import Tasks

Run = Callable[[list[str]], tuple[int, str]]

GOOD = {
    "name": ["q", "q", "q:key", "other"], "interval": ["1s", "200ms"], "rate": ["10/s", "100/15m"],
    "burst": ["1", "5"],
    "max_running": ["1", "0"], "shards": ["1", "4"], "output": ["out.jsonl", "results.jsonl", "/dev/null"],
    "resume": ["results.jsonl", "/dev/null", "broken.jsonl"], "lookahead": ["1", "all"], "tolerance": ["1ms"],
    "retries": ["0", "3"], "timeout": ["0", "1s"], "every": ["0.5"], "port": ["0"], "limit": ["20"],
    "window": ["1s"],
    "target": ["workers:tasks", "workers", "workers:other", "workers:no", "workers.no", "folder", "no:no"],
    "grace": ["0s", "30s"], "concurrency": ["10"], "processes": ["1", "2"],
    "queue": ["mails", "mails", "mails.dead", "q"], "to": ["later", "mails"], "prefix": ["", "ma"],
    "id_": ["t1", "t2", "t3"], "key": ["k"], "at": ["1", "2030-01-31T08:00+01:00"],
    "delay": ["1s", "1d"], "dedupe_key": ["d"], "inbox": ["0", "1"],
    "value": ["1", "null", '{"a": [1]}', "[", '"\\ud800"', "NaN", "-"],
    "spec": ["visits.toml", "jobs.txt"], "ids": ["t1", "t2"], "after": ["1s", "30d"],
    "jobs": ["jobs.txt", "jobs.jsonl", "-", "5"], "duration": ["1s", "1us"], "shell": ["bash", "zsh", "fish"],
}  # fmt: skip
STORES = [
    "memory://", "memory://", "memory://", "MEMORY://x", "state.json", "state.db", "new/../state.json",
    "folder",
    "broken.json", "broken.db", "~nobody-here/x", "redis://[", "nowhere://x", "file://host/x",
    "unix:///nowhere",
    "redis://host:0/0", "", " ", "/dev/null", "/", "sqlite://", "redis+cluster://host/1", "\udcff.json",
]  # fmt: skip
SECRETS = [
    f"redis://user:{CANARY}@host:1/0", f"redis://:{CANARY}@host:1/0?x=1", f"redis:/:{CANARY}@host",
    f"redis//:{CANARY}@x",
    f"postgresql://user:{CANARY}@host:1/db", f"postgresql://user:%{CANARY}@host/db", f"memory://:{CANARY}@host",
    f"user:{CANARY}@host://x", f"nowhere://user:{CANARY}@host", f"sqlite:///x?password={CANARY}",
    f"u:{CANARY}@host",
    f"redis+cluster://:{CANARY}@host:1", f"rediss://u/s:{CANARY}@host", f"postgres://host/db?password={CANARY}",
]  # fmt: skip
VALUES = [
    "q", "q", "q:key", "other", ":", "q:", "1", "0", "-1", "1s", "200ms", "10/s", "1e999", "nan", "inf",
    "all",
    "000000001", "000000001" + "9" * 4400, "9" * 5000, "jobs.txt", "jobs.jsonl", "results.jsonl",
    "broken.jsonl",
    "mails", "mails.dead", "q" * 121, "t1", "workers:tasks", "1e400", '"x"', "2030-01-31T08:00+01:00",
    "folder", "-", "/dev/null", "echo", "{}", "{a}", "bash", "", "state.json",
]  # fmt: skip


def arguments() -> st.SearchStrategy[str]:
    """A system can give a program any bytes but NUL."""
    return (mutated(st.sampled_from(VALUES)) | st.sampled_from(VALUES) | odd_text()).map(
        lambda text: os.fsdecode(text.encode(errors="replace").replace(b"\0", b"\xff"))
    )


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Mostly valid arguments of a command, with some mistakes."""
    name = draw(st.sampled_from([*_COMMANDS, "tasks", "tasks", "work"]))
    command = app.get_command(click.Context(app), name)
    assert command is not None
    words = [name]
    if isinstance(command, click.Group):
        inner = draw(st.sampled_from(command.list_commands(click.Context(command))))
        command = command.get_command(click.Context(command), inner)
        assert command is not None
        words.append(inner)
    if name in {"run", "exec", "demo", "tasks"} and draw(st.integers(0, 3)):
        paths = ["tasks.db"] if name == "tasks" else ["state.json", "state.db"]
        words.append(f"--store={draw(st.sampled_from(paths))}")
    elif name != "work" and draw(st.booleans()):
        words.append(f"--store={draw(st.sampled_from(STORES) | st.sampled_from(SECRETS))}")
    for parameter in command.params:
        if parameter.name == "store" or not (parameter.required or draw(st.integers(0, 2)) == 0):
            continue
        good = st.sampled_from(GOOD.get(parameter.name or "", [""]))
        value = draw(arguments() if draw(st.integers(0, 5)) == 0 else good)
        if isinstance(parameter, click.Argument):
            words.append(value)
        else:
            words += (
                [parameter.opts[0]] if getattr(parameter, "is_flag", False) else [parameter.opts[0], value]
            )
    # After a "--" it would not be an option.
    first = next((at + 1 for at, word in enumerate(words) if word.startswith("--store=")), 0)
    if draw(st.integers(0, 5)) == 0:
        words.insert(
            draw(st.integers(first, len(words))),
            draw(arguments() | st.sampled_from(["--", "-h", "--int", "-x"])),
        )
    if name in {"run", "exec"} and draw(st.integers(0, 3)):
        words += [
            "--",
            *draw(st.lists(st.sampled_from(["echo", "{}", "{a}", "{{a}}"]) | arguments(), max_size=3)),
        ]
    return words


async def _stands_still(*_: object) -> int:
    return 0


async def _serves(*_: object, task_status: TaskStatus[Addresses], **__: object) -> None:
    task_status.started(Addresses(None, "http://127.0.0.1:1"))


def _exits(code: int) -> NoReturn:
    raise click.exceptions.Exit(code)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command line until it would begin jobs; returns its exit code and all of its output."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "broken.db").write_text("no database")
    (tmp_path / "jobs.txt").write_text("echo 1\necho 2\n")
    (tmp_path / "jobs.jsonl").write_text('{"a": 1}\n')
    result = {"job": "echo 1", "exit_code": 0, "attempt": 1}
    (tmp_path / "results.jsonl").write_text(json.dumps(result) + "\n" + json.dumps(result)[:-3])
    (tmp_path / "broken.jsonl").write_text("[]\n")
    (tmp_path / "workers.py").write_text(
        "from intervalq.tasks import Tasks\ntasks = Tasks()\nother = Tasks()\ntasks.worker('q')(print)\n"
    )
    for name, value in {"XDG_STATE_HOME": tmp_path, "HOME": tmp_path, "COLUMNS": 80}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("INTERVALQ_STORE", "memory://")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("intervalq.cli._run.exec._become", _stands_still)
    monkeypatch.setattr("intervalq.cli._doctor.command.about_spark", lambda: None)  # runs Java
    monkeypatch.setattr("intervalq.cli._pipeline.command._spark", _stands_still)
    monkeypatch.setattr("intervalq.cli._demo.command._Demo.run", _stands_still)
    monkeypatch.setattr("intervalq.cli._demo.api._serve", _stands_still)
    monkeypatch.setattr(_session._Session, "run", _stands_still)
    monkeypatch.setattr("intervalq.cli._schedule.once._Once.run", _stands_still)
    monkeypatch.setattr("intervalq.cli._schedule.once.Guarded", lambda _: io.StringIO())  # it forks
    monkeypatch.setattr("intervalq.service.serve", _serves)
    monkeypatch.setattr(
        "click.shell_completion.BashComplete._check_version", lambda *_: None
    )  # it starts bash

    monkeypatch.setattr("intervalq.cli._work.worker.run", _stands_still)
    monkeypatch.setattr("intervalq.cli._work.supervisor.Fleet.run", _stands_still)
    monkeypatch.setattr(_work_run, "end", _exits)
    monkeypatch.setattr(sys, "path", sys.path.copy())  # `work` adds the folder to it
    monkeypatch.delitem(sys.modules, "workers", raising=False)

    async def refuse(*_: object, **__: object) -> Any:
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", refuse)

    async def make() -> None:
        store = open_store("memory://")
        for name in await store.names():
            await store.apply(name, Drop())
        for name in ("q", "q:key"):
            await store.apply(name, Hold(settings=Settings(interval=1_000_000), nonce="n", length=1))
        async with Tasks("tasks.db") as tasks:
            left = await tasks.tasks(limit=None)
            await tasks.modify(*(task.delete() for task in left))
            await tasks.modify(*(tasks.new("mails", id_, id=id_, key="k") for id_ in ("t1", "t2")))
            await tasks.insert("mails.dead", "t3", id="t3")

    def run(words: list[str]) -> tuple[int, str]:
        anyio.run(make)
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = run_app(words)
        return code, output.getvalue()

    with kept_in(tmp_path):
        yield run


def test_a_time_that_is_no_number_is_refused(run: Run) -> None:
    assert run(["top", "--once", "--every", "nan"])[0] == 2


@fuzz(200)
@example(words=["run", "--name=q", "--interval=1s", "--lookahead", "000000001" + "9" * 5000, "jobs.txt"])
@example(words=["run", "--name=q", "--interval=1s", "jobs.txt", "--resume", "/dev/null"])
@example(words=["top", "--every", "nan"])
@example(words=["tasks", "insert", "mails", "--store=tasks.db", "--", "\udcff"])
@example(words=["tasks", "list", "q" * 121, "--store=tasks.db"])
@example(words=["tasks", "queues", "--store", f"postgresql://user:{CANARY}@host:1/db"])
@example(words=["work", "workers", "--until-empty"])
@example(words=["work", "workers", "--processes=2", "--json"])
@example(words=["serve", "--store=memory://x"])
@example(words=["once", "--name=q", "--every=1s", "--store=state.json", "--", "cat"])
@example(words=["status", "--store", "~nobody-here/x"])
@example(words=["status", "q", "--store", f"postgresql://user:%{CANARY}@host/db"])
@given(words=command_lines())
def test_a_command_line_is_done_or_refused(run: Run, words: list[str]) -> None:
    code, output = run(words)
    assert code in {0, 1, 2, 126, 127}
    assert code == 0 or output
    assert CANARY not in output
    assert "Traceback" not in output


@pytest.mark.parametrize("store", SECRETS)
@pytest.mark.parametrize(
    "command",
    [
        ["status"], ["status", "q", "--json"], ["doctor"], ["pause", "q"], ["tasks", "queues"],
        ["tasks", "insert", "q", "1"], ["tasks", "delete", "t1"],
    ],
)  # fmt: skip
def test_a_secret_in_a_store_is_not_said(run: Run, command: list[str], store: str) -> None:
    code, output = run([*command, "--store", store])
    assert CANARY not in output
    assert code in {1, 2} or store.startswith("memory:")

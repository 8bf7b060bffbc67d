"""Help, completion, and messages about missing extras; each example of a help text is run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.command_line import CommandLine, help_of
from intervalq.cli import _app
from intervalq.cli._app import _POSIX, app
from spark.pipelines import Small

COMMANDS = Path(_app.__file__).parent


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        yield name, command


def examples() -> Iterator[str]:
    for _, command in [("", app), *commands()]:
        assert command.epilog is not None, f"{command.name} has no example"
        found = [line.strip() for line in command.epilog.splitlines() if "intervalq " in line]
        assert found
        yield from found


def test_help_of_all_commands(intervalq: CommandLine) -> None:
    overview = intervalq("--help").stdout
    assert "..." not in overview.replace("[ARGS]...", ""), "a summary was cut short"
    assert all(len(line) <= 80 for line in overview.splitlines())
    for name, _ in commands():
        assert f"\n  {name} " in overview
        output = help_of(name)
        assert "Usage: intervalq" in output
        assert "Examples:\n" in output
        assert "\b" not in output
    assert intervalq("--version").stdout.startswith("intervalq, version ")
    assert intervalq(code=2).stderr.startswith("Usage: intervalq")
    assert "There is `intervalq tasks lock`." in intervalq("lock", "x", code=2).stderr
    assert "There is" not in intervalq("tasks", "pause", code=2).stderr


def test_commands_that_need_signals_say_so_on_other_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intervalq.cli._app._HAS_SIGNALS", False)
    for place, words in (
        ("run", ["run", "--", "echo", "{}"]),
        ("lock", ["tasks", "lock", "a", "--", "true"]),
    ):
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2
        assert f"`{place}` needs the signals of Linux or macOS" in refused.output
    overview = CliRunner().invoke(app, ["--help"])
    assert overview.output.count("Needs Linux or macOS.") == 8
    signalled = {
        file.relative_to(COMMANDS).with_suffix("").as_posix().replace("/", ".")
        for file in COMMANDS.rglob("*.py")
        if re.search(r"\bresource\b|SIGHUP|live_table|open_signal_receiver", file.read_text())
    }
    parts = {
        "_run.child",
        "_run.parent",
        "_tasks.guarded",
        "_work.supervisor",
        "_work.worker",
        "_app",
    }
    assert signalled - parts <= {place.partition(":")[0] for place in _POSIX}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store with a queue `api`, created once, because that takes several processes."""
    intervalq = CommandLine(tmp_path_factory.mktemp("used"))
    intervalq("exec", "--name", "api", "--rate", "5/s", "--", "true")
    intervalq.end()
    return intervalq.folder / "state.json"


@pytest.mark.parametrize("example", sorted(set(examples())))
def test_examples_work(intervalq: CommandLine, used: Path, example: str) -> None:
    shutil.copy(used, intervalq.folder)
    intervalq.write("jobs.txt", "echo 1", "echo 2")
    intervalq.write("users.jsonl", '{"id": 1, "email": "a@example.org"}')
    result = {
        "job": "echo 1",
        "shard": 1,
        "ticket": 1,
        "due": 9e8,
        "started": 9e8,
        "exit_code": 0,
        "attempt": 1,
    }
    intervalq.write("results.jsonl", *[json.dumps(result)] * ("intervalq report" in example))
    if "intervalq pipeline" in example:
        Small(intervalq.folder)
    (intervalq.folder / ".config" / "fish" / "completions").mkdir(parents=True)
    if "intervalq tasks" in example or "intervalq work" in example:  # a JSON file can't hold tasks
        intervalq.environment["INTERVALQ_STORE"] = str(intervalq.folder / "tasks.db")
        intervalq.write(
            "app.py", "from intervalq.tasks import Tasks", "tasks = Tasks()", "tasks.worker('q')(print)"
        )
    shell = "zsh" if "zsh" in example else "bash"
    if shutil.which(shell) is None:  # then the script isn't run, but generated
        shell, example = "bash", example.removeprefix("eval ")
        example = example.strip('"').removeprefix("$(").removesuffix(")")
    if "intervalq ledger" in example:
        intervalq.python(
            "import anyio; from intervalq.ledger.rules import Beat; "
            "from intervalq.ledger.store import open_ledger_store as store; "
            "anyio.run(store().apply, 'filings-2026', Beat('s', 1))"
        )
    if "tenant-42" in example:  # the key has begun a job, so that it has a record
        intervalq.python(
            "from intervalq.sync import IntervalQueue; "
            "IntervalQueue('api', rate='5/s', each='shared')['tenant-42'].run(int)"
        )
    # These run until they are stopped, and other programs may be at their usual ports.
    servers = {"intervalq demo-api": "http://", "intervalq serve": "gRPC at"}
    if server := next((name for name in servers if example.startswith(name)), None):
        if server == "intervalq serve":
            example = f"intervalq serve --grpc 127.0.0.1:0 --http 127.0.0.1:0{example.removeprefix(server)}"
        process = intervalq.start(*shlex.split(example.replace("8020", "0"))[1:])
        assert process.stdout is not None
        assert process.stdout.readline().startswith((servers[server], "{"))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        return
    if example.startswith("intervalq demo"):
        example = f"{example} --jobs 2"
    ran = subprocess.run(
        [shell, "-c", example],
        cwd=intervalq.folder,
        env={**intervalq.environment, "HOME": str(intervalq.folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(intervalq: CommandLine, shell: str) -> None:
    script = intervalq("completion", shell).stdout
    assert "_INTERVALQ_COMPLETE" in script
    words = {"bash": ("COMP_CWORD", "1"), "zsh": ("COMP_CWORD", "1"), "fish": ("COMP_CWORD", "cool")}[shell]
    intervalq.environment |= {
        "_INTERVALQ_COMPLETE": f"{shell}_complete", "COMP_WORDS": "intervalq cool", words[0]: words[1],
    }  # fmt: skip
    assert "cool-down" in intervalq(code=None).stdout


def test_without_the_extra_a_line_says_what_to_install(intervalq: CommandLine) -> None:
    for part in ("click", "rich"):
        hide = f"import sys; sys.modules[{part!r}] = None; from intervalq.cli import main; main()"
        ran = subprocess.run(
            [sys.executable, "-c", hide],
            env=intervalq.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 2
        assert ran.stderr == (
            "intervalq: the command line needs an optional part: pip install 'intervalq[cli]'\n"
        )


def test_text_of_others_cannot_command_a_terminal() -> None:
    from intervalq._show import as_json, escaped

    assert escaped("a\x1b[2J\x9b\x7f\u202eb\r\n") == "a\\x1b[2J\\x9b\\x7f\\u202eb\\r\\n"
    assert escaped("x" * 10, 6) == "xxx..."
    assert as_json({"a": "\x1b\x7f\x9b"}) == '{"a": "\\u001b\\u007f\\u009b"}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0us"),
        (0.000_123, "123us"),
        (0.0123, "12.3ms"),
        (0.9996, "1s"),
        (59.96, "60s"),
        (100.0, "1m40s"),
        (3_600.0, "1h00m"),
        (90_061.0, "25h01m"),
        (-0.5, "-500ms"),
    ],
)
def test_durations_as_people_read_them(value: float | None, text: str) -> None:
    from intervalq._show import seconds

    assert seconds(value) == text

"""`intervalq once`: of many hosts, one runs the command; what becomes of it is known, also if it dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.command_line import CommandLine, Ended
from intervalq.cli._app import Failed
from intervalq.cli._schedule.once import _Once
from intervalq.errors import StoreTimeout
from intervalq.schedules._holder import Holder, Process
from intervalq.schedules._times.plan import Plan
from intervalq.schedules.rules import Record
from intervalq.store import Swapped
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from schedules.world import Line, run

WAITS = 'echo $$ > pid; read code < gate; exit "$code"'
"""A command that says which process it is, and ends when somebody opens the gate."""
YEARLY = ("--name", "n", "--every", "365d")
"""An occurrence that doesn't end during a test."""
HOST = socket.gethostname()


@pytest.fixture
def once(intervalq: CommandLine) -> Callable[..., Ended]:
    os.mkfifo(intervalq.folder / "gate")
    os.mkfifo(intervalq.folder / "pid")
    return lambda *options, code=0: intervalq("once", *options, code=code)


def started(intervalq: CommandLine, *options: str) -> subprocess.Popen[str]:
    """A host that runs the command."""
    process = intervalq.start("once", *options, "--", "sh", "-c", WAITS)
    process.command = int((intervalq.folder / "pid").read_text())  # type: ignore[attr-defined]  # for the tests
    return process


def test_one_runs_it_and_the_others_say_which(intervalq: CommandLine, once: Callable[..., Ended]) -> None:
    first = started(intervalq, *YEARLY)
    assert once(*YEARLY, "--", "echo", "twice").stderr == f"intervalq: {HOST} runs it\n"
    assert f"running on {HOST}" in intervalq("schedule", "list").stdout
    waits = intervalq.start("once", *YEARLY, "--wait", "--", "echo", "twice")
    (intervalq.folder / "gate").write_text("3\n")
    assert first.wait() == 3
    assert waits.communicate() == ("", f"intervalq: {HOST} has run it: exit code 3\n")
    assert waits.returncode == 3
    ended = once(*YEARLY, "--", "echo", "twice")
    assert (ended.stdout, ended.stderr) == ("", f"intervalq: {HOST} has run it: exit code 3\n")
    (line,) = intervalq("schedule", "list", "--json").results
    assert (line["name"], line["host"], line["running"]) == ("n", HOST, False)
    table = intervalq("schedule", "list").stdout
    assert f" on {HOST} " in table, "it ran there last"
    assert "runs a command" in table
    assert f"waiting on {HOST}" not in table


def test_if_its_host_dies_another_one_runs_it_where_that_is_wanted(
    intervalq: CommandLine, once: Callable[..., Ended]
) -> None:
    options = (*YEARLY, "--retry-after", "1s")
    first = started(intervalq, *options)
    others = [intervalq.start("once", *options, "--", "sh", "-c", "echo $INTERVALQ_FENCE") for _ in range(2)]
    waits = intervalq.start("once", *YEARLY, "--wait", "--", "echo", "twice")
    first.kill()
    said = sorted(process.communicate() for process in others)
    assert [process.returncode for process in others] == [0, 0]
    lost = f"intervalq: {HOST} ran it, and was lost: it runs here now\n"
    assert said == [("", f"intervalq: {HOST} has run it\n"), ("2\n", lost)]
    assert waits.communicate()[0] == ""
    assert waits.returncode in {0, 75}, "it saw the loss, or the end"
    command = Path(f"/proc/{first.command}")  # type: ignore[attr-defined]
    assert intervalq.until(lambda: not command.exists()), "the guard ends the first one's command"


def test_the_next_one_says_what_was_lost_and_missed(
    intervalq: CommandLine, once: Callable[..., Ended]
) -> None:
    options = ("--name", "n", "--every", "1s", "--retry-after", "1s")
    started(intervalq, *options).kill()
    said = [once(*options, "--", "true").stderr]
    while "was lost" not in said[-1]:
        assert "is left out" in said[-1]  # found by this start, or by an earlier one of the same second
        said.append(once(*options, "--", "true").stderr)
    assert f"{HOST} ran " in said[-1]
    assert len(said) == 1 or "missed before this one: " in said[-1]


def test_a_signal_ends_the_command_and_the_run_has_ended(
    intervalq: CommandLine, once: Callable[..., Ended]
) -> None:
    first = started(intervalq, *YEARLY)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM
    assert once(*YEARLY, "--", "true").stderr == f"intervalq: {HOST} has run it: exit code 143\n"


@pytest.mark.usefixtures("once")
def test_nobody_can_ask_for_a_command_that_no_process_waits_to_run(intervalq: CommandLine) -> None:
    first = started(intervalq, *YEARLY)
    (running,) = intervalq("schedule", "list", "--json").results
    refused = [intervalq("schedule", "run", "n", code=2).stderr]
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM
    (ended,) = intervalq("schedule", "list", "--json").results
    refused.append(intervalq("schedule", "run", "n", code=2).stderr)
    assert [shown["is_command"] for shown in (running, ended)] == [True, True]
    assert all("intervalq once" in why and "Run the command itself" in why for why in refused)


def test_late_ones_paused_ones_and_wrong_ones(intervalq: CommandLine) -> None:
    late = intervalq("once", *YEARLY, "--grace", "0", "--", "true", code=75)
    assert "it is too late for 20" in late.stderr
    intervalq("once", "--name", "c", "--cron", "0 3 1 1 *", "--timezone", "Europe/Berlin", "--", "true")
    intervalq("schedule", "pause", "c")
    ended = intervalq("once", "--name", "c", "--cron", "0 3 1 2 *", "--", "echo", "twice")
    assert (ended.stdout, ended.stderr) == ("", "intervalq: the schedule is paused\n")
    for arguments, code, why in (
        (("--every", "1d"), 2, "after --"),
        (("--", "true"), 2, "--every and --cron"),
        (("--every", "1d", "--cron", "0 3 * * *", "--", "true"), 2, "--every and --cron"),
        (("--cron", "@reboot", "--", "true"), 2, "@reboot"),
        (("--every", "1d", "--retry-after", "0.1s", "--", "true"), 2, "--retry-after"),
        (("--every", "1d", "--store", "memory://", "--", "true"), 2, "memory"),
        (("--every", "1d", "--", "no-such-program"), 127, "not found"),
    ):
        assert why in intervalq("once", "--name", "w", *arguments, code=code).stderr


def test_the_doctor_names_hosts_whose_clocks_disagree(intervalq: CommandLine) -> None:
    intervalq("once", *YEARLY, "--", "true")
    assert (
        "the clocks of the hosts that fired its schedules agree with its own (1)"
        in intervalq("doctor").stdout
    )
    path = intervalq.folder / "state.json"
    document = json.loads(path.read_text())
    record = json.loads(document["schedules"]["n"])
    assert Holder.of(record["holder"]) == (HOST, 0.0, 0, True)
    other = Process().name(1, -90_000_000).replace(HOST[:100], "far\x1bhost")
    document["schedules"]["m"] = json.dumps(record | {"holder": other})
    path.write_text(json.dumps(document))
    said = intervalq("doctor").stdout
    assert "the clock of far\\x1bhost was 90s behind its own" in said
    assert "agree" not in said


@pytest.mark.parametrize("name", ["", "1.2@h+1.0", "deadbeef", f"{'a' * 16}.5@h+1.0 x"])
def test_names_of_other_holders_tell_nothing(name: str) -> None:
    assert Holder.of(name) is None
    assert Holder.of(f"{'a' * 16}.5@a+b-0.3+1.0 7") == ("a+b-0.3", 1.0, 7, True)


def test_a_host_that_gets_no_answers_ends_its_command_before_another_one_may_begin() -> None:
    """The store takes everything, and is silent."""

    class Silent(Line):
        hangs = False

        async def swap_schedule(self, *given: Any, **options: Any) -> Swapped:
            if self.hangs:
                await anyio.sleep(30)
                raise StoreTimeout(self.url, "no answer")
            return await super().swap_schedule(*given, **options)

    class Endless:
        """A command."""

        async def run(self, _fence: int, _grace: float) -> int:
            store.hangs = True
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(virtual_micros())
            raise AssertionError

    store, ended = Silent(MemoryStore(clock=virtual_micros)), list[int]()

    async def main() -> None:
        host = _Once(store, "n", Plan.of(every="1h"), None, 9_000_000, waits=True, retries=True)
        with pytest.raises(Failed, match="whole lease"):
            await host._decide(Endless())  # type: ignore[arg-type]  # as much of one as it needs
        (text,) = (await Line(store).read_schedules()).texts.values()
        assert ended[0] <= Record.from_text(text).until - 900_000

    run(main)


def test_of_several_hosts_that_take_over_a_lost_run_one_does() -> None:
    """They see at the same time that its lease has ended, and the answers of the store take a while."""
    store, runs = MemoryStore(clock=virtual_micros), list[int]()

    class Command:
        """A command."""

        async def run(self, fence: int, _grace: float) -> int:
            runs.append(fence)
            await anyio.sleep(1)
            return 0

    async def main() -> None:
        plan, now = Plan.of(every="365d"), virtual_micros()
        at = plan.latest(0, now, 1)[0]
        lost = Record(
            plan=plan.to_text(), through=at, reported=0, fired=at, fence=1, holder="lost",
            until=now + 1_000_000, running=True,
        )  # fmt: skip
        await store.swap_schedule("n", None, lost.to_text())
        codes: list[int] = []

        async def host() -> None:
            line = Line(store)
            line.slow_looks = line.slow_swaps = 0.1
            made = _Once(line, "n", plan, None, 9_000_000, waits=True, retries=True)
            codes.append(await made._decide(Command()))  # type: ignore[arg-type]  # as much of one as it needs

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(host)
        assert (runs, codes) == ([2], [0, 0, 0])

    run(main)

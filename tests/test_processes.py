"""Real processes on real stores: one is killed with -9 while it holds tickets and runs a job."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from intervalq.sync import IntervalQueue

INTERVAL = 0.02
LOOKAHEAD = 16  # the default


def start(store: str, name: str, jobs: int, role: str) -> subprocess.Popen[str]:
    script = Path(__file__).parent / "paced_process.py"
    command = [sys.executable, str(script), store, name, str(INTERVAL), str(jobs), role]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    output = process.stdout.readline().strip()
    return output if output in ("ready", "") else json.loads(output)


@dataclass
class Said:
    """What a process has printed."""

    starts: list[list[int]] = field(default_factory=list)
    """Of each job: the time of the last check, the ticket, and how late after its slot it may have begun."""
    given_up: int = 0
    """How many slots it woke too late for: on a busy machine any number, and no fault of the queue."""
    regressions: int | None = None

    def hear(self, said: Any) -> None:
        """Note one line."""
        if isinstance(said, list):
            self.starts.append(said)
        else:
            self.given_up = said.get("given_up", self.given_up)
            self.regressions = said.get("regressions")

    def hear_all(self, process: subprocess.Popen[str]) -> None:
        """Note the rest, which `communicate` would lose in part: some of it may have been read ahead."""
        assert process.stdout is not None
        for rest in process.stdout:
            self.hear(json.loads(rest))
        process.communicate()


@pytest.mark.parametrize("kind", ["redis", "valkey", "postgres", "pgbouncer", "file"])
def test_a_killed_process_costs_a_few_slots_and_nothing_else(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/state.json" if kind == "file" else request.getfixturevalue(f"{kind}_url")
    name = f"killed-{secrets.token_hex(6)}"
    processes = [start(store, name, 20, "lives") for _ in range(3)]
    victim = start(store, name, 20, "killed")
    for process in (*processes, victim):
        assert line(process) == "ready"
    for process in (*processes, victim):
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()

    of_victim = Said()
    while len(of_victim.starts) < 3:
        of_victim.hear(line(victim))
    victim.kill()  # its callers hold tickets, and jobs that have begun run for ever
    of_victim.hear_all(victim)
    of_others = [Said() for _ in processes]
    for process, said in zip(processes, of_others, strict=True):
        said.hear_all(process)
        assert process.returncode == 0
        assert len(said.starts) == 20, "every job of the processes that live began"
        assert said.regressions == 0, "counters never go back"

    everyone = (of_victim, *of_others)
    starts = sorted(start for said in everyone for start in said.starts)
    tickets = [ticket for _, ticket, _ in starts]
    assert tickets == sorted(set(tickets)), "in ticket order, each once"
    for (earlier, _, tolerance), (later, _, _) in pairwise(starts):
        assert later - earlier >= INTERVAL * 1e6 - tolerance
    given_up = sum(said.given_up for said in everyone)
    with IntervalQueue(name, store=store) as queue:
        issued = queue.inspect().ticket
        assert issued - len(starts) - given_up <= LOOKAHEAD, "slots that nobody used"
        queue.drop()

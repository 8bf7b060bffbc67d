"""Real processes on real stores: one is killed with -9 while it holds tickets and runs a job."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
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

    begun = [line(victim) for _ in range(3)]
    victim.kill()  # its callers hold tickets, and jobs that have begun run for ever
    rest, _ = victim.communicate()
    begun += [json.loads(answer) for answer in rest.splitlines()]
    given_up = begun[-1][2]  # on a busy machine, even a process that will be killed misses slots
    starts: list[tuple[int, int]] = [(at, ticket) for at, ticket, _ in begun]
    for process in processes:
        out, _ = process.communicate()
        answer = [json.loads(entry) for entry in out.splitlines()]
        assert process.returncode == 0
        assert len(answer) == 20 + 1, "every job of the processes that live began"
        starts += [(at, ticket) for at, ticket, _ in answer[:-1]]
        given_up += answer[-1]["given_up"]
        assert answer[-1]["regressions"] == 0, "counters never go back"

    starts.sort()
    tickets = [ticket for _, ticket in starts]
    assert tickets == sorted(set(tickets)), "in ticket order, each once"
    gaps = [(later - earlier) / 1e6 for (earlier, _), (later, _) in pairwise(starts)]
    assert min(gaps) >= 0.9 * INTERVAL
    with IntervalQueue(name, store=store) as queue:
        issued = queue.inspect().ticket
        assert issued - len(starts) - given_up <= LOOKAHEAD, "slots that nobody used"
        queue.drop()

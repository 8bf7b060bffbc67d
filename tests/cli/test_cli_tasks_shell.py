"""The commands by which a shell claims tasks, and settles or changes them."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cli import tasks_shown
from cli.command_line import CommandLine
from cli.tasks_shown import claimed, lines, looked, sizes
from intervalq.store import wall_clock
from intervalq.tasks import Tasks
from intervalq.tasks.rules import SECOND, Beat

tasks = tasks_shown.tasks
Run = Callable[..., Any]


def one(ran: Any) -> dict[str, Any]:
    [shown] = lines(ran)
    return shown


def sessions(tasks: Run) -> int:
    return len(lines(tasks("sessions", "--json")))


def test_a_claim_outlives_its_command_until_it_is_acknowledged(tasks: Run) -> None:
    assert "no task of q is ready" in tasks("claim", "q", code=1).stderr
    assert sessions(tasks) == 0
    tasks("insert", "q", '{"n": 1}')
    claim = one(tasks("claim", "other", "q"))
    assert (claim["value"], claim["attempt"], claim["queue"]) == ({"n": 1}, 1, "q")
    assert claim["claimed_until"] - claim["modified"] == 300
    tasks("claim", "q", code=1)
    assert sessions(tasks) == 1
    assert tasks("ack", claim["claim"]).stdout == f"task {claim['id']} is done\n"
    assert sizes(tasks) == {}
    assert sessions(tasks) == 0
    assert "no longer held by this claim" in tasks("ack", claim["claim"], code=1).stderr


def test_a_failed_attempt_counts_and_may_be_the_last(tasks: Run) -> None:
    tasks("insert", "q", "1")
    claim = one(tasks("claim", "q"))
    ran = tasks("nak", claim["claim"], "--delay", "1h", "--error", "no answer")
    assert ran.stdout == f"task {claim['id']} is tried again\n"
    shown = one(tasks("list", "q", "--json"))
    assert (shown["attempt"], shown["error"], shown["claimant"]) == (1, "no answer", None)
    assert shown["at"] > claim["modified"] + 3000
    tasks("claim", "q", code=1)
    tasks("modify", claim["id"], "--delay", "0s")
    claim = one(tasks("claim", "q"))
    assert (claim["attempt"], claim["error"]) == (2, "no answer")
    assert (
        tasks("nak", claim["claim"], "--dead", "--error", "never").stdout == f"task {claim['id']} is dead\n"
    )
    dead = one(tasks("dead", "q", "--json"))
    assert (dead["attempt"], dead["error"]) == (2, "never")
    for settle in ("ack", "nak"):
        tasks(settle, claim["claim"], code=1)
    tasks("nak", claim["claim"], "--dead", code=1)
    assert sessions(tasks) == 0


def test_a_claimed_task_is_changed_and_stays_claimed(tasks: Run) -> None:
    tasks("insert", "q", "1")
    claim = one(tasks("claim", "q"))
    more = one(
        tasks("modify", "--claim", claim["claim"], "--for", "10m", "--value", "[2]", "--progress", "0.4")
    )
    assert (more["value"], more["progress"], more["note"]) == ([2], 0.4, "")
    assert more["claimed_until"] > claim["claimed_until"] + 200
    for stale in (("ack",), ("nak",), ("modify", "--claim")):  # which leave the claim alone
        assert "no longer held" in tasks(*stale, claim["claim"], code=1).stderr
    more = one(tasks("modify", "--claim", more["claim"], "--note", "nearly", "--checkpoint", "[3]"))
    assert (more["progress"], more["note"]) == (0.4, "nearly")
    tasks("nak", more["claim"])
    again = one(tasks("claim", "q"))
    assert (again["attempt"], again["checkpoint"]) == (2, [3])
    again = one(tasks("modify", "--claim", again["claim"], "--checkpoint", "null"))
    assert again["checkpoint"] is None
    tasks("ack", again["claim"])
    assert sizes(tasks) == {}


def test_an_acknowledgement_has_the_result_of_a_kept_task(tasks: Run) -> None:
    for kept in (("--keep", "1h"), ()):
        tasks("insert", "q", "1", *kept)
        tasks("ack", one(tasks("claim", "q"))["claim"], "--result", '{"pages": 4}')
    shown = one(tasks("list", "--done", "--json"))
    assert (shown["result"], shown["until"] - shown["ended"]) == ({"pages": 4}, 3600)


def test_a_claim_that_nobody_settles_ends(tasks: Run) -> None:
    tasks("insert", "q", "1")
    claim = one(tasks("claim", "q", "--for", "30s"))
    longer = one(tasks("modify", "--claim", claim["claim"], "--for", "1h"))
    now = wall_clock()

    async def beaten(handle: Tasks, seconds: int) -> int:
        return len((await handle._here().apply(Beat("other"), now + seconds * SECOND)).lapsed)

    assert looked(tasks, lambda handle: beaten(handle, 60)) == 0
    assert looked(tasks, lambda handle: beaten(handle, 3700)) == 1
    shown = one(tasks("list", "q", "--json"))
    assert shown["claimant"] is None
    assert shown["error"].endswith(" was lost")
    assert "no longer held" in tasks("ack", longer["claim"], code=1).stderr
    assert "no longer held" in tasks("modify", "--claim", longer["claim"], code=1).stderr
    assert sessions(tasks) == 0


async def test_tasks_are_changed_by_their_ids(intervalq: CommandLine, tasks: Run) -> None:
    tasks("insert", "q", "1", "--id", "a")
    shown = one(tasks("modify", "a", "--value", "2", "--to", "r", "--delay", "1h"))
    assert (shown["value"], shown["queue"], shown["version"]) == (2, "r", 1)
    assert "there is no task 'b'" in tasks("modify", "b", "--to", "r", code=1).stderr
    tasks("modify", "a", "--delay", "0s")
    claim = one(tasks("claim", "r"))
    assert "is claimed by a worker" in tasks("modify", "a", "--value", "3", code=1).stderr
    shown = one(tasks("modify", "a", "--value", "3", "--force", "--reset"))
    assert (shown["value"], shown["attempt"], shown["claimant"]) == (3, 0, None)
    tasks("ack", claim["claim"], code=1)
    async with claimed(intervalq, "r") as mine:
        assert mine.value == 3


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("ack", "nothing"), "is not a claim"),
        (("nak", "1:2:3"), "is not a claim"),
        (("modify",), "give the ID of a task, or --claim"),
        (("modify", "a", "--claim", "b"), "give the ID of a task, or --claim"),
        (("modify", "a", "--for", "1m"), "--for can't be given with ID"),
        (("modify", "--claim", "b", "--to", "r"), "--to can't be given with --claim"),
        (("modify", "a", "--value", "{"), "--value '{' is not JSON"),
        (("modify", "a", "--checkpoint", "1"), "--checkpoint can't be given with ID"),
        (("ack", f"1:{'0' * 36}:a", "--result", "{"), "--result '{' is not JSON"),
        (("claim", "q", "--for", "1ms"), "for"),
        (("claim", "q", "--wait", "soon"), "wait"),
        (("claim",), "Missing argument"),
    ],
)
def test_wrong_use(tasks: Run, args: tuple[str, ...], reason: str) -> None:
    assert reason in tasks(*args, code=2).stderr


def test_a_claim_waits_for_a_task(tasks: Run) -> None:
    """It also waits for a task that becomes ready later."""
    inserting = threading.Thread(target=tasks, args=("insert", "q", "1", "--delay", "100ms"))
    inserting.start()
    claim = one(tasks("claim", "q", "--wait", "1m"))
    inserting.join()
    assert claim["value"] == 1


def test_plain_tasks_of_ranges_can_be_claimed(intervalq: CommandLine, tasks: Run, postgres_url: str) -> None:
    intervalq.environment["INTERVALQ_STORE"] = postgres_url
    tasks.url = postgres_url  # type: ignore[attr-defined]
    queue = f"suite-{secrets.token_hex(6)}"
    looked(tasks, lambda handle: handle.put(queue, [1, 2]))
    claims = [one(tasks("claim", queue)) for _ in range(2)]
    assert sorted(claim["value"] for claim in claims) == [1, 2]
    tasks("claim", queue, code=1)
    tasks("nak", claims[0]["claim"])
    tasks("ack", claims[1]["claim"])
    claim = one(tasks("claim", queue))
    assert (claim["id"], claim["attempt"]) == (claims[0]["id"], 2)
    tasks("ack", claim["claim"])
    assert lines(tasks("list", queue, "--json")) == []


def test_claims_on_nats_end_with_their_process(intervalq: CommandLine, tasks: Run, nats_url: str) -> None:
    intervalq.environment["INTERVALQ_STORE"] = nats_url
    assert "run it with intervalq work" in tasks("claim", "q", code=1).stderr


def test_every_line_is_json(tasks: Run) -> None:
    tasks("insert", "q", '"ü\\n"')
    assert json.loads(tasks("claim", "q").stdout)["value"] == "ü\n"

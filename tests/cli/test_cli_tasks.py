"""The commands on durable tasks, as people and as programs use them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import click
import pytest
from anyio.lowlevel import checkpoint

from cli.command_line import CommandLine, help_of
from intervalq.cli._tasks import bulk as _tasks_hands
from intervalq.cli._tasks.bulk import BulkEdit
from intervalq.cli._tasks.command import tasks as group
from intervalq.cli._tasks.show import many
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Change, Command, Delete, Modify, Row

R = TypeVar("R")


@pytest.fixture
def anyio_backend() -> str:
    """What the commands run on, too."""
    return "asyncio"


@pytest.fixture
def tasks(intervalq: CommandLine) -> Callable[..., Any]:
    """Runs `intervalq tasks`, with a database of its own."""
    intervalq.environment["INTERVALQ_STORE"] = url(intervalq)

    def run(*args: str, **more: Any) -> Any:
        return intervalq("tasks", *args, **more)

    run.url = url(intervalq)  # type: ignore[attr-defined]  # for those who look by themselves
    return run


def url(intervalq: CommandLine) -> str:
    return f"sqlite://{intervalq.folder}/tasks.db"


def lines(ran: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def looked(tasks: Callable[..., Any], look: Callable[[Tasks], Awaitable[R]]) -> R:
    """What there is, asked without a command: in a thread, for an event loop may run here already."""

    async def do() -> R:
        async with Tasks(tasks.url) as handle:  # type: ignore[attr-defined]  # the fixture's
            return await look(handle)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, do).result()


def values(tasks: Callable[..., Any], queue: str) -> list[Any]:
    return [task.value for task in looked(tasks, lambda handle: handle.tasks(queue, limit=None))]


def sizes(tasks: Callable[..., Any]) -> dict[str, int]:
    return {queue.name: queue.size for queue in looked(tasks, Tasks.queues)}


def ids(tasks: Callable[..., Any], queue: str) -> list[str]:
    return [task.id for task in looked(tasks, lambda handle: handle.tasks(queue))]


@asynccontextmanager
async def claimed(intervalq: CommandLine, queue: str) -> AsyncIterator[Claim]:
    async with Tasks(url(intervalq)) as handle:
        yield await handle.claim(queue)


# --- insert -------------------------------------------------------------------------------------------


def test_insert_and_look(tasks: Callable[..., Any]) -> None:
    assert tasks("queues").stdout == "no queues\n"
    assert tasks("list").stdout == "no tasks\n"
    id_ = tasks("insert", "mails", '{"to": "ann"}').stdout.strip()
    assert tasks("insert", "mails", "--text", "[hi]", "--id", "1001", "--delay", "1h").stdout == "1001\n"
    first, second = lines(tasks("list", "mails", "--json"))
    assert (first["id"], first["value"], first["queue"], first["version"]) == (id_, {"to": "ann"}, "mails", 0)
    assert (second["id"], second["value"]) == ("1001", "[hi]")
    assert second["at"] - second["created"] == pytest.approx(3600)
    assert lines(tasks("show", "1001", "--json")) == [second]
    assert len(lines(tasks("list", "--json", "--limit", "1"))) == 1
    shown = tasks("list").stdout
    assert id_ in shown
    assert '{"to": "ann"}' in shown
    assert "59m" in shown or "1h00m" in shown
    said = tasks("show", id_).stdout
    assert f"task  {id_}\n" in said
    assert '"to": "ann"' in said
    (queue,) = lines(tasks("queues", "--json"))
    assert queue == {
        "name": "mails", "size": 2, "claimed": 0, "ready": 1, "future": 1, "inbox": 0, "most_claims": 0,
        "exact": True,
    }  # fmt: skip
    assert "mails" in tasks("queues").stdout
    assert tasks("queues", "--prefix", "x").stdout == "no queues\n"


def test_options_of_an_insert(tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", "1", "--at", "2030-01-31T08:00:00+01:00", "--key", "k", "--inbox", "1")
    tasks("insert", "q", "2", "--at", "0", "--key", "k", "--inbox", "1")
    assert "inbox of key 'k'" in tasks("insert", "q", "3", "--key", "k", "--inbox", "1", code=1).stderr
    first, second = sorted(lines(tasks("list", "q", "--json")), key=lambda task: task["created"])
    assert (first["at"], second["at"]) == (1896073200, 0)
    assert (first["key"], first["waiting"], second["waiting"]) == ("k", False, True)
    tasks("insert", "q", "4", "--key", "k", "--replace")
    assert values(tasks, "q") == [4]
    once = tasks("insert", "q", "5", "--dedupe-key", "d")
    twice = tasks("insert", "q", "6", "--dedupe-key", "d", "--json")
    assert lines(twice) == [{"id": once.stdout.strip(), "inserted": False}]
    assert "nothing was inserted" in twice.stderr
    tasks("insert", "q", "--id", "x", "7")
    assert "'x' exist already" in tasks("insert", "q", "8", "--id", "x", code=1).stderr


def test_values_from_standard_input(tasks: Callable[..., Any]) -> None:
    said = tasks("insert", "q", stdin="".join(f"{number}\n" for number in range(2500)))
    assert said.stdout == "2500 tasks inserted\n"
    assert values(tasks, "q") == list(range(2500))
    assert lines(tasks("insert", "t", "-", "--text", "--json", stdin="a b\n\nc")) == [{"inserted": 3}]
    assert values(tasks, "t") == ["a b", "", "c"]
    assert tasks("insert", "r", stdin="\n1\n\n").stdout == "1 task inserted\n"


def test_a_bad_line_ends_it(tasks: Callable[..., Any]) -> None:
    text = "".join(f"{number}\n" for number in range(1500))
    ran = tasks("insert", "q", stdin=f"{text}no json\n7\n", code=2)
    assert "standard input, line 1501: 'no json' is not JSON" in ran.stderr
    assert ran.stdout == "1500 tasks inserted\n"
    assert values(tasks, "q") == list(range(1500))


def test_a_refused_batch_is_said(tasks: Callable[..., Any]) -> None:
    ran = tasks("insert", "q", "--key", "k", "--inbox", "3", stdin="1\n2\n3\n4\n5\n6\n", code=1)
    found = re.search("lines ([1-5]) to [4-6] were not inserted, none after that was", ran.stderr)
    assert found, ran.stderr
    assert ran.stdout == f"{many(int(found[1]) - 1)} inserted\n"
    assert values(tasks, "q") == list(range(1, int(found[1])))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["q", "hello"], "give --text"),
        (["q", "NaN"], "must be JSON"),
        (["q", "[" * 100_000], "is not JSON"),
        (["q", "\udcff", "--text"], "not UTF-8"),
        (["a b", "1"], "not a queue name"),
        (["q", "1", "--at", "2030-01-01T00:00"], "no time zone"),
        (["q", "1", "--at", "soon"], "is not a time"),
        (["q", "1", "--delay", "1h", "--at", "1"], "not both"),
        (["q", "1", "--delay", "soon"], "no delay"),
        (["q", "1", "--inbox", "3"], "--key"),
        (["q", "--id", "x"], "give a VALUE"),
        (["q", "1", "--key", ""], "1 to 128"),
        (["q", "1", "--store", "memory://"], "gone when this command ends"),
        (["q", "1", "--store", "nowhere://"], "entry-point group intervalq.task_stores"),
        (["q", "1", "--store", "file:///state.json"], "for durable tasks use one of the others"),
        (["q" * 121, "1"], "use 1 to 120 of"),
    ],
)
def test_wrong_inserts(tasks: Callable[..., Any], args: list[str], said: str) -> None:
    ran = tasks("insert", *args, code=2)
    assert said.replace("--key", "key") in ran.stderr.replace("--key", "key")
    assert len(ran.stderr.splitlines()) == 1
    assert sizes(tasks) == {}


def test_ctrl_c_ends_an_insert(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    process = intervalq.start("tasks", "insert", "q", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.flush()
    assert intervalq.until(lambda: sizes(tasks) == {"q": 2})
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stdout == "2 tasks inserted\n"
    assert "ends with line 2\n" in stderr


# --- looks --------------------------------------------------------------------------------------------


async def test_claims_and_sessions(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    assert tasks("sessions").stdout == "no sessions\n"
    id_ = tasks("insert", "q", "1").stdout.strip()
    async with claimed(intervalq, "q") as claim:
        (session,) = lines(tasks("sessions", "--json"))
        assert (session["id"], session["pid"]) == (claim.claimant, os.getpid())
        assert (session["consumer"], session["expiry"]) == (None, 5.0)
        assert 0 <= time.time() - session["started"] < 1000
        assert session["started"] <= session["beaten"]
        assert session["id"] in tasks("sessions").stdout
        assert "claimed" in tasks("list", "q").stdout
        said = tasks("show", id_).stdout
        assert f"session {claim.claimant} (" in said
        assert f":{os.getpid()})" in said
    assert lines(tasks("show", id_, "--json"))[0]["claims"] == 1


def test_a_task_that_is_not_there(tasks: Callable[..., Any]) -> None:
    assert "there is no task 'x'" in tasks("show", "x", code=1).stderr


def test_values_cannot_command_a_terminal(tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", "--text", "\x1b[2J\u202e", "--key", "\u202ek", "--id", "x")
    for look in (["list"], ["list", "--json"], ["show", "x"], ["show", "x", "--json"]):
        said = tasks(*look).stdout
        assert "\x1b" not in said
        assert "\u202e" not in said


# --- changes by hand ----------------------------------------------------------------------------------


async def die(intervalq: CommandLine, queue: str, why: str) -> str:
    async with claimed(intervalq, queue) as claim:
        await claim.term(why)
        return claim.id


async def test_dead_tasks_are_shown_and_put_back(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    assert tasks("dead").stdout == "no dead-letter tasks\n"
    tasks("insert", "a", "1")
    tasks("insert", "b", "2")
    first = await die(intervalq, "a", "broken\nbeyond repair")
    second = await die(intervalq, "b", "ill")
    assert [task["error"] for task in lines(tasks("dead", "--json"))] == ["broken\nbeyond repair", "ill"]
    assert [task["id"] for task in lines(tasks("dead", "b", "--json"))] == [second]
    assert "broken\\nbeyond repair" in tasks("dead").stdout
    assert "beyond repair" in tasks("show", first).stdout
    assert tasks("retry", first).stdout == "1 task put back\n"
    (task,) = lines(tasks("list", "a", "--json"))
    assert (task["id"], task["attempt"], task["error"]) == (first, 0, "")
    async with claimed(intervalq, "a") as claim:
        assert claim.attempt == 1
    assert tasks("retry", "--queue", "b.dead", "--all").stdout == "1 task put back\n"
    assert sizes(tasks) == {"a": 1, "b": 1}
    ran = tasks("retry", second, code=1)
    assert "is in queue b, which is not a dead-letter queue" in ran.stderr
    assert ran.stdout == "0 tasks put back\n"
    assert "give b.dead" in tasks("retry", "--queue", "b", "--all", code=2).stderr


async def test_moved_tasks(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", stdin="1\n2\n3\n")
    first, second, third = ids(tasks, "q")
    assert tasks("move", first, second, first, "--to", "r").stdout == "2 tasks moved to r\n"
    assert values(tasks, "r") == [1, 2]
    ran = tasks("move", "nope", third, "--to", "r", "--json", code=1)
    assert lines(ran) == [{"done": 1, "refused": [{"id": "nope", "why": "does not exist"}]}]
    assert "already in that queue" in tasks("move", third, "--to", "r", code=1).stderr
    assert tasks("move", "--queue", "r", "--all", "--to", "q").stdout == "3 tasks moved to q\n"
    assert tasks("move", "--queue", "r", "--all", "--to", "q").stdout == "0 tasks moved to q\n"
    dead = await die(intervalq, "q", "ill")
    tasks("move", dead, "--to", "again")
    assert [task["attempt"] for task in lines(tasks("list", "again", "--json"))] == [0]


async def test_claimed_tasks_are_not_touched_but_by_force(
    intervalq: CommandLine, tasks: Callable[..., Any]
) -> None:
    tasks("insert", "q", stdin="1\n2\n3\n")
    async with claimed(intervalq, "q") as claim:
        ran = tasks("delete", claim.id, code=1)
        assert f"task {claim.id} was not deleted: it is claimed by session {claim.claimant} (" in ran.stderr
        assert f":{os.getpid()})" in ran.stderr
        assert "give --force" in ran.stderr
        ran = tasks("move", "--queue", "q", "--all", "--to", "r", code=1)
        assert ran.stdout == "2 tasks moved to r\n"
        assert sizes(tasks) == {"q": 1, "r": 2}
        ran = tasks("delete", claim.id, "--force")
        assert "can't commit" in ran.stderr
        assert ran.stdout == "1 task deleted\n"
        assert sizes(tasks) == {"r": 2}


def test_estimates_are_marked(tasks: Callable[..., Any]) -> None:
    tasks("insert", "few", "1")
    tasks("insert", "many", stdin="".join(f"{number}\n" for number in range(10_500)))
    few, many = lines(tasks("queues", "--json"))
    assert (few["size"], few["exact"]) == (1, True)
    assert many["size"] > 10_000
    assert not many["exact"]
    shown = tasks("queues").stdout.splitlines()
    assert [line.count("~") for line in shown if line.split()[:1] in (["few"], ["many"])] == [0, 2]


def test_delete_all_of_a_queue(tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", stdin="".join(f"{number}\n" for number in range(2300)))
    tasks("insert", "r", "1")
    assert "give --yes to delete" in tasks("delete", "--queue", "q", "--all", code=2).stderr
    assert sizes(tasks)["q"] == 2300
    assert tasks("delete", "--queue", "q", "--all", "--yes").stdout == "2300 tasks deleted\n"
    assert sizes(tasks) == {"r": 1}


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_delete_asks_people(
    intervalq: CommandLine, tasks: Callable[..., Any], answer: bytes, code: int
) -> None:
    tasks("insert", "q", "1")
    terminal, end = pty.openpty()
    process = intervalq.start("tasks", "delete", "--queue", "q", "--all", stdin=end)
    os.write(terminal, answer)
    _, said = process.communicate()
    os.close(end)
    os.close(terminal)
    assert "Delete all tasks of q for good?" in said
    assert process.returncode == code
    assert (sizes(tasks) == {}) == (code == 0)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["delete"], "select the tasks"),
        (["delete", "--queue", "q"], "select the tasks"),
        (["delete", "--all", "--yes"], "select the tasks"),
        (["delete", "x", "--queue", "q", "--all"], "not both"),
        (["move", "x"], "--to"),
        (["move", "x", "--to", "a b"], "not a queue name"),
        (["move", "--queue", "q", "--all", "--to", "q"], "give another one"),
        (["retry", "--queue", "a b.dead", "--all"], "not a queue name"),
        (["list", "--limit", "0"], "--limit"),
        ([], "Usage"),
    ],
)
def test_wrong_use(tasks: Callable[..., Any], args: list[str], said: str) -> None:
    assert said in tasks(*args, code=2).stderr


# --- many by hand, in this process ----------------------------------------------------------------------


class Meddled(Tasks):
    """Somebody else does something before each change."""

    def __init__(self, before: Callable[[], Any]) -> None:
        super().__init__(f"memory://{os.urandom(8).hex()}")
        self.before = before
        self.changes = 0

    async def apply(self, command: Command[Any], connection: Any = None) -> Any:
        if isinstance(command, Modify) and not command.inserts:
            self.changes += 1
            await self.before()
        return await super().apply(command, connection)


def deleted(row: Row) -> Delete:
    return Delete(row.id, row.version)


async def test_what_others_change_meanwhile_is_looked_at_again() -> None:
    async def meddle() -> None:
        if handle.changes == 1:
            gone, changed, taken = (await handle.tasks("q"))[:3]
            await Tasks.apply(handle, Modify(deletes=(gone.delete(),), changes=(changed.change(7),)))
            await other.claim("q")
            del taken

    handle = Meddled(meddle)
    other = Tasks(handle._url)
    await handle.modify(*(handle.new("q", number) for number in range(10)))
    hands = BulkEdit(handle, deleted, "deleted", force=False)
    await hands.all_of("q")
    assert sorted(why.split(" by ")[0] for why in hands.refused.values()) == ["is claimed", "is gone"]
    assert hands.done == 8
    (left,) = await handle.queues()
    assert (left.size, left.claimed) == (1, 1)
    await other.aclose()
    await handle.aclose()


async def test_each_task_once_although_it_comes_back() -> None:
    async def back() -> None:
        rows = await handle.tasks("q", limit=None)
        await Tasks.apply(
            handle, Modify(changes=tuple(task.change(queue="q.dead", delay=0) for task in rows))
        )

    handle = Meddled(back)
    await handle.modify(*(handle.new("q.dead", number) for number in range(1000)))
    await handle.modify(*(handle.new("q.dead", number) for number in range(500)))
    hands = BulkEdit(
        handle, lambda row: Change(row.id, row.version, queue="q", delay=0), "put back", force=False
    )
    await hands.all_of("q.dead")
    assert hands.done == 1500
    await handle.aclose()


async def test_ctrl_c_ends_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def signalled() -> None:
        if handle.changes == 3:
            os.kill(os.getpid(), signal.SIGINT)
            while hands.by is None:
                await checkpoint()

    monkeypatch.setattr(_tasks_hands, "_STEP", 10)
    handle = Meddled(signalled)
    await handle.modify(*(handle.new("q", number) for number in range(100)))
    hands = BulkEdit(handle, deleted, "deleted", force=False)
    await hands.all_of("q")
    assert hands.by == signal.SIGINT
    assert hands.done == 30
    assert (await handle.queues())[0].size == 70
    await handle.aclose()


# --- help -----------------------------------------------------------------------------------------------


def examples() -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert command.epilog is not None
        yield from (line.strip() for line in command.epilog.splitlines() if "intervalq " in line)


@pytest.mark.parametrize("example", sorted(set(examples())))
async def test_examples_work(intervalq: CommandLine, tasks: Callable[..., Any], example: str) -> None:
    if "insert" not in example:
        async with Tasks(url(intervalq)) as handle:
            for id_, queue in (("1001", "mails"), ("1002", "mails"), ("1003", "spam")):
                await handle.insert(queue, 1, id=id_)
        await die(intervalq, "spam", "ill")
    ran = subprocess.run(
        ["bash", "-c", example],
        cwd=intervalq.folder,
        env=intervalq.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)


def test_help(tasks: Callable[..., Any]) -> None:
    overview = tasks("--help").stdout
    assert "..." not in overview.replace("[ARGS]...", ""), "a summary was cut short"
    for name in group.list_commands(click.Context(group)):
        assert f"\n  {name} " in overview
        assert "Examples:\n" in help_of("tasks", name)

"""The commands that retry, move and delete tasks, while others change some of these."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Callable
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from cli import tasks_shown
from cli.command_line import CommandLine
from cli.tasks_shown import claimed, die, lines, looked, sizes, values
from intervalq._watch import edit as edits
from intervalq.cli._tasks.bulk import BulkEdit
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Change, Command, Delete, Modify, Row

tasks = tasks_shown.tasks


def ids(tasks: Callable[..., Any], queue: str) -> list[str]:
    return [task.id for task in looked(tasks, lambda handle: handle.tasks(queue))]


async def test_dead_tasks_are_shown_and_put_back(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    assert tasks("dead").stdout.startswith("no dead-letter tasks in ")
    tasks("insert", "a", "1", "--key", "k")
    tasks("insert", "b", "2")
    first = await die(intervalq, "a", "broken\nbeyond repair")
    second = await die(intervalq, "b", "ill")
    assert [task["error"] for task in lines(tasks("dead", "--json"))] == ["broken\nbeyond repair", "ill"]
    assert [task["id"] for task in lines(tasks("dead", "b", "--json"))] == [second]
    assert "broken\\nbeyond repair" in tasks("dead").stdout
    shown = tasks("show", first).stdout
    assert "beyond repair" in shown
    assert "state  dead\n" in shown
    assert "not before" not in shown
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
    _, output = process.communicate()
    os.close(end)
    os.close(terminal)
    assert "Delete all tasks of q for good?" in output
    assert process.returncode == code
    assert (sizes(tasks) == {}) == (code == 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["delete"], "select the tasks"),
        (["delete", "--queue", "q"], "select the tasks"),
        (["delete", "--all", "--yes"], "select the tasks"),
        (["delete", "x", "--queue", "q", "--all"], "not both"),
        (["move", "x"], "--to"),
        (["move", "x", "--to", "a  b"], "not a queue name"),
        (["move", "--queue", "q", "--all", "--to", "q"], "give another one"),
        (["retry", "--queue", "a  b.dead", "--all"], "not a queue name"),
        (["list", "--limit", "0"], "--limit"),
        ([], "Usage"),
    ],
)
def test_wrong_use(tasks: Callable[..., Any], args: list[str], message: str) -> None:
    assert message in tasks(*args, code=2).stderr


# --- many by hand, in this process ----------------------------------------------------------------------


class Meddled(Tasks):
    """Another client acts before each change."""

    def __init__(self, before: Callable[[], Any]) -> None:
        super().__init__(f"memory://{os.urandom(8).hex()}")
        self.before = before
        self.changes = 0

    async def _apply(self, command: Command[Any], connection: Any = None) -> Any:
        if isinstance(command, Modify) and not command.inserts:
            self.changes += 1
            await self.before()
        return await super()._apply(command, connection)


def deleted(row: Row) -> Delete:
    return Delete(row.id, row.version)


async def test_what_others_change_meanwhile_is_looked_at_again() -> None:
    async def meddle() -> None:
        if handle.changes == 1:
            gone, changed, taken = (await handle.tasks("q"))[:3]
            await Tasks._apply(handle, Modify(deletes=(gone.delete(),), changes=(changed.change(7),)))
            await other.claim("q")
            del taken

    handle = Meddled(meddle)
    other = Tasks(handle._url)
    await handle.modify(*(handle.new("q", number) for number in range(10)))
    edit = BulkEdit(handle, deleted, "deleted", force=False)
    await edit.all_of("q")
    assert sorted(why.split(" by ")[0] for why in edit.refused.values()) == ["is claimed", "is gone"]
    assert edit.done == 8
    (left,) = await handle.queues()
    assert (left.size, left.claimed) == (1, 1)
    await other.aclose()
    await handle.aclose()


async def test_each_task_once_although_it_comes_back() -> None:
    async def back() -> None:
        rows = await handle.tasks("q", limit=None)
        await Tasks._apply(
            handle, Modify(changes=tuple(task.change(queue="q.dead", delay=0) for task in rows))
        )

    handle = Meddled(back)
    await handle.modify(*(handle.new("q.dead", number) for number in range(1000)))
    await handle.modify(*(handle.new("q.dead", number) for number in range(500)))
    edit = BulkEdit(
        handle, lambda row: Change(row.id, row.version, queue="q", delay=0), "put back", force=False
    )
    await edit.all_of("q.dead")
    assert edit.done == 1500
    await handle.aclose()


async def test_ctrl_c_ends_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def signalled() -> None:
        if handle.changes == 3:
            os.kill(os.getpid(), signal.SIGINT)
            while edit.by is None:
                await checkpoint()

    monkeypatch.setattr(edits, "_STEP", 10)
    handle = Meddled(signalled)
    await handle.modify(*(handle.new("q", number) for number in range(100)))
    edit = BulkEdit(handle, deleted, "deleted", force=False)
    await edit.all_of("q")
    assert edit.by == signal.SIGINT
    assert edit.done == 30
    assert (await handle.queues())[0].size == 70
    await handle.aclose()

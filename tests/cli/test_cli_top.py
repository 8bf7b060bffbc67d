"""`intervalq top` on a terminal with a keyboard, over real stores; Textual's pilot presses the keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import socket
import struct
import termios
from collections.abc import Callable
from pathlib import Path

import anyio.lowlevel
import pytest
from textual.widgets import Input

import screens
from cli.command_line import CommandLine
from intervalq import IntervalQueue
from intervalq._observe.actions import keeping
from intervalq._watch.reader import Reader
from intervalq.cli._top.app import Top
from intervalq.cli._top.tasks import TasksOf
from intervalq.tasks import Tasks
from servers import Server


def shown(app: Top) -> str:
    """The text on the screen."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def opened(url: str) -> Top:
    """It looks when it is told to."""
    return Top(Reader.opened(url), "sqlite:///app.db", every=3600)


async def used(url: str, name: str = "api") -> None:
    async with IntervalQueue(name, rate="9/s", store=url) as queue:
        await queue.run(anyio.lowlevel.checkpoint)


async def changed(app: Top) -> None:
    """What was confirmed has been done."""
    for worker in [each for each in app.workers if each.name == "change"]:
        await worker.wait()


async def test_all_views_and_the_picture_in_the_documentation(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    async with screens.world(url) as work:
        drawing = await screens.terminal(url, work, 2, screens.starts_log(tmp_path))
        assert screens.words(drawing) == screens.kept("top.svg"), "run `python tests/screens.py top`"
        assert "http" not in drawing.replace("http://www.w3.org/", "")
        app = opened(url)
        async with app.run_test(size=(100, 30)) as pilot:
            await app.look()
            text = shown(app)
            for queue in ("api", "llm", "llm:ann", "llm:<script>eve</script>", "mail"):
                assert f" {queue} " in text
            assert "paused" in text
            assert re.search(r"tickets  \d+ issued, .* outstanding", text)
            await pilot.press("2")
            await app.look()
            assert ["reports", "12", "8", "1", "3"] in [line.split()[:5] for line in shown(app).splitlines()]
            await pilot.press("3")
            await app.look()
            assert "nightly" in shown(app)
            assert "inserts into reports" in shown(app)
            await pilot.press("4")
            await app.look()
            assert "works on  reports" in shown(app)
            assert "40%: page 3 of 7" in shown(app)
        await app._reader.aclose()


async def test_a_queue_is_paused_and_resumed_after_asking(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    async with IntervalQueue("api", rate="1000/s", store=url) as queue:
        async with queue.slot():
            pass
        app = opened(url)
        async with app.run_test(size=(80, 24)) as pilot:
            await app.look()
            for key, answer, held in (
                ("p", "n", False),
                ("p", "y", True),
                ("p", "escape", True),
                ("p", "y", False),
            ):
                await pilot.press(key)
                assert "api, for all processes?" in shown(app)
                await pilot.press(answer)
                await pilot.pause()
                await changed(app)
                assert (await queue.inspect()).is_held is held
                assert ("paused" in shown(app)) is held
        await app._reader.aclose()


async def test_what_was_done_is_written_down_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERVALQ_ACTIONS", str(tmp_path / "actions.jsonl"))
    url = f"sqlite://{tmp_path}/state.db"
    await used(url)
    async with Tasks(url) as tasks:
        await tasks.insert("mails", 1, id="m")
        await tasks.schedule("nightly", "mails", 1, every="1d")
    app = opened(url)
    with keeping():
        async with app.run_test(size=(110, 30)) as pilot:
            await app.look()
            for keys in ("py", "2", ("down", "enter"), "cy", ("escape", "3"), "fy", "5"):
                await pilot.press(*keys)
                await pilot.pause()
                await changed(app)
                await (app.screen.look() if isinstance(app.screen, TasksOf) else app.look())
            done = [line.split("ago")[1].split() for line in shown(app).splitlines() if "ago " in line]
            assert [line[1:] for line in done[:3]] == [
                ["fire", "schedule", "nightly", "done"],
                ["cancel", "task", "m", "1", "task"],
                ["pause", "queue", "api", "done"],
            ]
            assert done[0][0].endswith(f"@{socket.gethostname()}")
        await app._reader.aclose()


async def test_the_weight_of_a_key_is_changed(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    async with IntervalQueue("api", rate="1000/s", each="shared", store=url) as queue:
        async with queue["ann"].slot():
            pass
        app = opened(url)
        async with app.run_test(size=(100, 24), notifications=True) as pilot:
            await app.look()
            await pilot.press("w")  # on the queue itself, which has none
            await pilot.press("down")
            for typed, weight in (("3", 3), ("", 3), ("x", 3), ("1001", 3), ("0", None)):
                await pilot.press("w", *typed, "enter")
                await pilot.pause()
                await changed(app)
                await pilot.pause()
                assert (await queue["ann"].inspect()).weight == weight, typed
                assert ("3, for all processes" in shown(app)) is (weight == 3)
        await app._reader.aclose()


async def test_schedules_are_paused_resumed_and_run(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    async with Tasks(url) as tasks:
        await tasks.schedule("nightly", "reports", 1, every="1d")
        app = opened(url)
        async with app.run_test() as pilot:
            await pilot.press("3")
            await app.look()
            for key in ("p", "p", "f"):
                await pilot.press(key, "y")
                await pilot.pause()
                await changed(app)
                [info] = await tasks.schedules.inspect_all()
                assert info.paused is (key == "p" and "paused" in shown(app))
        assert [each.name for each in await tasks.queues() if each.name == "reports"] == ["reports"]
        await app._reader.aclose()


async def test_tasks_of_a_queue_are_chosen_and_changed(tmp_path: Path) -> None:
    """Dead tasks are looked at, filtered, put back, moved and deleted; others are cancelled."""
    url = f"sqlite://{tmp_path}/state.db"
    async with Tasks(url) as tasks:
        await screens.dead(tasks)
        for number in range(12):
            await tasks.insert("reports", number)
        await tasks.claim("reports")

        async def queues() -> dict[str, int]:
            return {each.name: each.size for each in await tasks.queues() if ":" not in each.name}

        app = opened(url)
        async with app.run_test(size=(110, 30), notifications=True) as pilot:

            async def press(*keys: str) -> str:
                await pilot.press(*keys)
                await changed(app)
                if isinstance(app.screen, TasksOf):
                    await app.screen.look()
                await pilot.pause()
                return shown(app)

            await press("2")
            await app.look()
            assert "shows the tasks of mails.dead" in await press()
            text = await press("enter", "down")
            assert "tasks of mails.dead" in text
            assert "SMTPError: try 2" in text
            assert re.search(r"attempt 2  failed \d{4}-", text)
            assert '"to": 1' in await press("v")
            assert "Retry task mail-1?" in await press("r")
            await press("n")
            assert await queues() == {"mails.dead": 3, "reports": 12}
            assert "Retry: 1 task" in await press("r", "y")
            assert await queues() == {"mails": 1, "mails.dead": 2, "reports": 12}
            text = await press("slash", *"3q", "backspace", "enter")  # q is a letter there
            assert "mail-2" in text
            assert "mail-0" not in text
            assert "Move task mail-2 to which queue?" in await press("a", "m")
            assert "Move task mail-2 to x?" in await press(*"x", "enter")
            await press("y")
            assert await queues() == {"mails": 1, "mails.dead": 1, "reports": 12, "x": 1}
            assert "mail-0" in await press("escape")  # out of the filter
            assert re.search(r"\* +mail-0", await press("space"))
            await press("d", "y")
            assert await queues() == {"mails": 1, "reports": 12, "x": 1}
            assert "reports" in await press("escape")
            await app.look()
            await press("down", "enter")
            assert "Cancel all tasks of reports?" in await press("a", "c")
            assert "Cancel: 12 tasks" in await press("y")
            left = await tasks.tasks("reports")
            assert [task.claimant is not None for task in left] in (
                [True],
                [],
            )  # what is being worked on ends
        await app._reader.aclose()


async def test_tasks_that_the_user_spared_are_not_changed(tmp_path: Path) -> None:
    """Tasks end while a name is typed, chosen ones are hidden by the filter, one of all is left out."""
    url = f"sqlite://{tmp_path}/state.db"
    async with Tasks(url) as tasks:
        for number in range(5):
            await tasks.insert("mails", number, id=f"mail-{number}")
        app = opened(url)
        async with app.run_test(size=(110, 30)) as pilot:
            screen = TasksOf(app._reader, "mails", 3600)
            await app.push_screen(screen)
            await screen.look()

            async def left(*keys: str) -> list[str]:
                await pilot.press(*keys)
                await changed(app)
                return sorted(task.id for task in await tasks.tasks("mails"))

            await pilot.press("m", "x")
            await tasks.cancel("mail-0")
            await screen.look()
            await pilot.press("enter")
            assert "Move task mail-0 to x?" in shown(app)
            assert await left("y") == ["mail-1", "mail-2", "mail-3", "mail-4"]
            await pilot.press("a", "space")
            await pilot.press("d")
            assert "Delete 3 tasks?" in shown(app)
            await pilot.press("n", "a", "space")  # now the first alone is not chosen
            screen.query_one(Input).value = "mail-3"
            await pilot.pause()
            await pilot.press("d")
            assert "Delete task mail-3?" in shown(app)
            assert await left("y") == ["mail-1", "mail-2", "mail-4"]
        await app._reader.aclose()


async def test_the_cursor_stays_on_its_row(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    for name in ("b", "c"):
        await used(url, name)
    app = opened(url)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.look()
        await pilot.press("down")
        assert "queue  c" in shown(app)
        await used(url, "a")
        await app.look()
        await pilot.pause()
        assert "queue  c" in shown(app)
    await app._reader.aclose()


async def test_a_store_that_is_lost_is_shown_and_what_was_seen_stays(
    own_redis: Callable[..., Server],
) -> None:
    server = own_redis()
    await used(server.url)
    app = opened(server.url)
    async with app.run_test(size=(80, 24)) as pilot:
        await app.look()
        server.stop()
        await app.look()
        await pilot.pause()
        text = shown(app)
        assert "seen " in text.splitlines()[0]
        assert " api " in text
        await pilot.press("2")
        await app.look()
        assert "nothing here" in shown(app)
        server.start()
        await pilot.press("1")
        await app.look()
        assert "intervalq top" in shown(app)
    await app._reader.aclose()


@pytest.mark.parametrize("size", [(20, 5), (1, 1)])
async def test_a_tiny_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    await used(url)
    app = opened(url)
    async with app.run_test(size=size) as pilot:
        await app.look()
        await pilot.press("down", "2", "1")
        assert size == (1, 1) or "api" in shown(app) or size[1] < 8
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "queue  api" in shown(app)
    await app._reader.aclose()


@pytest.mark.parametrize("end", ["\x03", "SIGTERM"])
def test_it_leaves_a_real_terminal_as_it_was(intervalq: CommandLine, end: str) -> None:
    intervalq("exec", "--name", "api", "--rate", "9/s", "--", "true")
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(inner)
    process = intervalq.start("top", "--every", "0.2", stdin=inner, stdout=inner, stderr=inner)
    seen = b""
    while b"api" not in seen:
        seen += os.read(terminal, 4096)
    if end == "SIGTERM":
        process.terminate()
    else:
        os.write(terminal, end.encode())
    while b"\x1b[?1049l" not in seen:
        seen += os.read(terminal, 4096)
    assert process.wait() == 0
    assert termios.tcgetattr(inner) == before
    assert b"Traceback" not in seen
    os.close(inner)
    os.close(terminal)


def test_without_textual_it_names_the_extra(intervalq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('no', name='textual')")
    intervalq.environment["PYTHONPATH"] = str(tmp_path)
    terminal, inner = pty.openpty()
    process = intervalq.start("top", stdin=inner, stdout=inner, stderr=inner)
    assert process.wait() == 2
    assert b"pip install 'intervalq[cli]'" in os.read(terminal, 4096)
    os.close(inner)
    os.close(terminal)

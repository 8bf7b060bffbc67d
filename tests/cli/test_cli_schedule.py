"""The commands on schedules, as people and as programs use them."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from intervalq.cli._app import run_app
from intervalq.schedules import Schedules
from intervalq.schedules.sync import Schedules as BlockingSchedules
from intervalq.tasks.sync import Tasks as BlockingTasks


def test_schedules_are_shown_paused_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    monkeypatch.setenv("INTERVALQ_STORE", url)

    def run(*args: str, code: int = 0) -> str:
        assert run_app(["schedule", *args]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    assert run("list") == "no schedules\n"

    async def declare() -> None:
        async with Schedules(url) as schedules:
            schedules.cron("30 2 * * *", timezone="Europe/Berlin", name="nightly", window="22:00-06:00")(
                print
            )
            async with anyio.create_task_group() as group:
                group.start_soon(schedules.run)
                while not await schedules.inspect_all():
                    pass
                group.cancel_scope.cancel()

    anyio.run(declare)
    listed = run("list")
    assert "nightly" in listed
    assert "cron 30 2 * * *, Europe/Berlin, window 22:00-06:00" in listed
    assert "waiting" in listed
    times = run("next", "nightly", "-n", "3").splitlines()
    assert len(times) == 3
    assert all(" 02:30:00+0" in time for time in times)
    assert run("pause", "nightly") == "nightly: paused; `intervalq schedule resume` ends that\n"
    assert run("list").split()[-1] == "(paused)"
    assert run_app(["schedule", "next", "nightly", "-n", "3"]) == 0
    paused = capsys.readouterr()
    assert paused.out.splitlines() == times
    assert paused.err.startswith("nightly is paused; ")
    assert run("resume", "nightly") == f"nightly: resumed (next: {times[0]})\n"
    (line,) = run("list", "--json").splitlines()
    info = json.loads(line)
    assert (info["name"], info["paused"], info["last"], len(info["upcoming"])) == ("nightly", False, None, 1)
    assert json.loads(run("next", "nightly", "--json"))["upcoming"][:1] == info["upcoming"]
    with BlockingSchedules(url) as schedules:
        schedules.pause("nightly")
        assert schedules.inspect("nightly", upcoming=2).paused
        schedules.resume("nightly")
        assert [info.paused for info in schedules.inspect_all()] == [False]
    assert run("drop", "nightly") == "nightly: dropped\n"
    assert "no schedule 'nightly'" in run("next", "nightly", code=1)
    assert "memory" in run("list", "--store", "memory://", code=2)


def test_durable_schedules_are_handled_like_those_that_call_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite://{tmp_path}/state.db"
    monkeypatch.setenv("INTERVALQ_STORE", url)

    def run(*args: str, code: int = 0) -> str:
        assert run_app(["schedule", *args]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    with BlockingTasks(url) as tasks:
        tasks.schedule("weekly", "reports", cron="30 2 * * mon", timezone="Europe/Berlin")
        assert "weekly" in run("list")
        assert "inserts into reports" in run("list")
        times = run("next", "weekly").splitlines()
        assert len(times) == 10
        assert all(time.startswith("Mon ") for time in times)
        assert run("pause", "weekly").startswith("weekly: paused")
        assert run("list").split()[-1] == "(paused)"
        assert run("resume", "weekly").startswith("weekly: resumed (next: Mon ")
        said = run("run", "weekly")
        assert said == f"weekly: inserted task {tasks.tasks('reports')[0].id}\n"
        assert json.loads(run("list", "--json"))["queue"] == "reports"
        assert run("drop", "weekly") == "weekly: dropped\n"
        assert tasks.schedules.inspect_all() == []
    assert "no schedule 'weekly'" in run("run", "weekly", code=1)

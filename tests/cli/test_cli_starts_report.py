"""`intervalq report`, and the execution log of queues that it reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import screens
from cli.command_line import CommandLine
from intervalq import IntervalQueue, sync
from intervalq._watch.log import BadLog, QueueLog, read
from intervalq.cli._report.figures import NOT_HERE, figures
from intervalq.testing import VirtualClock, virtual_clock

FIRST = 1_000_000_000.0


def line(**fields: object) -> str:
    return json.dumps({"queue": "q", "shard": "host:1:1", **fields}) + "\n"


def start(number: int, at: float | None = None, **fields: object) -> str:
    due = FIRST + number * 0.1
    return line(ticket=number, due=due, started=due if at is None else FIRST + at, **fields)


SETTINGS = line(at=FIRST, interval=0.1, tolerance=0.01, burst=1, max_running=None, limits=["15/s"])


def one(path: Path, text: str, interval: float | None = None) -> QueueLog:
    path.write_text(text)
    [queue] = read([path], interval=interval, tolerance=None)
    return queue


# --- the log ----------------------------------------------------------------------------------------


def test_a_queue_logs_its_starts_and_settings(tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    with virtual_clock():
        queue = sync.IntervalQueue("api", rate="20/s", limits=["100/min"], log=log)
        for number in range(5):
            if number == 3:
                queue.configure(rate="10/s")
            queue.run(int)
        [*map(queue.add(int).result, [10])]
        queue.close()
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    assert {each["queue"] for each in lines} == {"api"}
    assert len({each["shard"] for each in lines}) == 1
    starts = [each for each in lines if "started" in each]
    assert [each["ticket"] for each in starts] == sorted(each["ticket"] for each in starts)
    assert len(starts) == 6
    assert all(0 <= each["started"] - each["due"] < 1e-3 for each in starts), starts
    paces = [each for each in lines if "interval" in each]
    assert [each["interval"] for each in paces] == [0.05, 0.1]
    assert paces[0]["limits"] == ["100/m"]
    assert paces[0]["tolerance"] == 0.005
    found = one(log, log.read_text())
    assert len(found.started) == 6
    gaps = [round(later - at, 3) for at, later in pairwise(found.started)]
    assert gaps == [0.05, 0.05, 0.1, 0.1, 0.1]
    assert figures(found).short == 0


def test_a_slot_that_was_taken_back_is_no_start(tmp_path: Path) -> None:
    text = SETTINGS + start(1) + start(2) + line(ticket=2, undone=True) + start(2, 0.205) + start(3)
    assert list(one(tmp_path / "log", text).tickets) == [1, 2, 3]


async def test_without_a_log_nothing_observes(tmp_path: Path) -> None:
    plain = IntervalQueue("plain", rate="100/s", store="memory://")
    logged = IntervalQueue("logged", rate="100/s", store="memory://", log=tmp_path / "log")
    for queue in (plain, logged):
        async with queue.slot():
            pass
    names = {"accept", "take_ready", "undo"}
    assert not names & vars(plain._shard().dispatcher).keys()
    assert names <= vars(logged._shard().dispatcher).keys()
    await plain.close()
    await logged.close()


async def test_a_log_that_cant_be_opened_is_an_error_at_first_use(tmp_path: Path) -> None:
    queue = IntervalQueue("q", rate="100/s", store="memory://", log=tmp_path)
    with pytest.raises(OSError, match=str(tmp_path)):
        await queue.run(lambda: None)  # type: ignore[arg-type,return-value]


def test_processes_write_to_one_file(tmp_path: Path) -> None:
    """They exit without closing their handles, and fork in between."""
    code = """
import os, sys
from intervalq import sync
queue = sync.IntervalQueue("shared", rate="400/s", store=sys.argv[1], log=sys.argv[2])
queue.run(int)
child = os.fork()
for _ in range(20):
    queue.run(int)
if child:
    os.waitpid(child, 0)
"""
    log = tmp_path / "log"
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "state.db"), str(log)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    queue = one(log, log.read_text())
    assert len(queue.tickets) == 2 * 41
    assert len({*queue.tickets}) == 2 * 41
    assert len(queue.shards) == 4


# --- figures ----------------------------------------------------------------------------------------


def test_gaps_are_judged_by_the_promise(tmp_path: Path) -> None:
    """0.09 is promised: 0.0899 is too short, and 0.09 isn't; nor are gaps across a change of the interval."""
    kept = one(tmp_path / "log", SETTINGS + start(1) + start(2, 0.19) + start(3, 0.31))
    assert figures(kept).short == 0
    short = one(tmp_path / "log", SETTINGS + start(1) + start(2, 0.1899))
    assert figures(short).short == 1
    slower = line(at=FIRST + 0.2, interval=1.0, tolerance=0.1, burst=1, max_running=None, limits=[])
    assert figures(one(tmp_path / "log", SETTINGS + start(1) + slower + start(2))).short == 0
    burst = SETTINGS.replace('"burst": 1', '"burst": 2')
    made = figures(one(tmp_path / "log", burst + start(1) + start(2, 0.1)))
    assert (made.short, made.promise) == (0, None)


def test_unused_slots_have_causes_or_are_missing(tmp_path: Path) -> None:
    text = SETTINGS + start(1) + start(2) + line(at=FIRST, unused={"late": 1, "away": 2}) + start(9)
    made = figures(one(tmp_path / "log", text))
    assert made.unused == Counter({"late": 1, "away": 2, NOT_HERE: 3})
    assert made.possible == pytest.approx(9)
    assert made.inversions == 0
    assert figures(one(tmp_path / "log", SETTINGS + start(2, 0.1) + start(1, 0.2))).inversions == 1


def test_windows_of_limits(tmp_path: Path) -> None:
    made = figures(one(tmp_path / "log", SETTINGS + "".join(start(number) for number in range(1, 31))))
    [window] = made.windows
    assert (window.limit, window.most, max(window.taken)) == ("15/s", 15, 10)


def test_results_of_run(tmp_path: Path) -> None:
    results = "".join(
        json.dumps(
            {"job": "x", "shard": number % 2 + 1, "ticket": number, "due": FIRST + number * 0.1,
             "started": FIRST + number * 0.1 + 0.001, "ended": FIRST + 9, "exit_code": int(number % 3 == 0),
             "stdout": "", "stderr": "", "attempt": 1}
        ) + "\n"
        for number in range(1, 10)
    )  # fmt: skip
    queue = one(tmp_path / "api.jsonl", results)
    assert (queue.name, queue.is_guessed, queue.failed) == ("api", True, 3)
    made = figures(queue)
    assert (made.interval, made.promise) == (0.1, 0.9)
    assert made.shards == {"shard 1": 4, "shard 2": 5}
    assert not one(tmp_path / "api.jsonl", results, interval=0.2).is_guessed
    # The last line was being written.
    assert len(one(tmp_path / "api.jsonl", results + '{"job": "x", "sh').started) == 9


@pytest.mark.parametrize("bad", ["[1]\n", "{}\n", "nothing\n", '{"shard": 1, "started": 2}\n'])
def test_other_lines_are_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(BadLog, match=r"log, line 2: .*report takes"):
        one(tmp_path / "log", SETTINGS + bad + start(1))


# --- the page ---------------------------------------------------------------------------------------


def test_the_page(intervalq: CommandLine, tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    name = "<script>alert(1)</script>"
    text = SETTINGS + "".join(start(number, shard=f"host:{number % 9}:1") for number in range(1, 60))
    log.write_text((text + line(at=FIRST, unused={"late": 3})).replace('"q"', json.dumps(name)))
    output = tmp_path / "page.html"
    done = intervalq("report", str(log), "--output", str(output), "--png", str(tmp_path / "charts"))
    assert done.code == 0, done.stderr
    page = output.read_text()
    assert done.stdout.splitlines()[0] == str(output)
    assert "the spacing was kept" in page
    assert "<script" not in page
    assert "&lt;script" in page
    assert "@media (prefers-color-scheme: dark)" in page
    assert 'name="viewport"' in page
    # Nothing is loaded: all addresses are names of namespaces, or parts of the page.
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', page)
    assert not re.findall(r"url\((?!#)|@import", page)
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len({*ids})
    pictures = sorted((tmp_path / "charts").iterdir())
    assert [picture.stem for picture in pictures] == [
        f"q1-{name}" for name in ("gaps", "late", "limit1", "starts", "unused", "used")
    ]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_short_gaps_are_told(intervalq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(SETTINGS + start(1) + start(2, 0.15) + start(3))
    done = intervalq("report", str(tmp_path / "log"), "--output", str(tmp_path / "page.html"))
    assert "queue 'q': gaps shorter than promised: 1" in done.stderr
    assert "1 gap shorter than promised" in (tmp_path / "page.html").read_text()


def test_a_log_without_starts(intervalq: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(SETTINGS)
    done = intervalq("report", str(tmp_path / "log"), code=2)
    assert "no starts" in done.stderr


def test_the_clock_of_the_fixture_is_that_of_the_log(virtual_clock: VirtualClock, tmp_path: Path) -> None:
    queue = sync.IntervalQueue("q", interval="1h", log=tmp_path / "log")
    queue.run(int)
    queue.run(int)
    queue.close()
    found = one(tmp_path / "log", (tmp_path / "log").read_text())
    assert found.started[1] - found.started[0] == pytest.approx(3600, abs=0.1)
    assert virtual_clock.elapsed == pytest.approx(3600, abs=0.1)


def test_the_page_is_as_its_picture_in_the_documentation_shows_it(tmp_path: Path) -> None:
    page = screens.report_page(tmp_path).read_text()
    assert screens.labels(page) == screens.kept("report.png"), "run `python tests/screens.py report`"

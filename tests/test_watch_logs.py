"""What those who look at a store see of execution logs, while queues write them."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from anyio.lowlevel import checkpoint

from intervalq import IntervalQueue, sync
from intervalq._watch import follow
from intervalq._watch.follow import Logs
from intervalq._watch.log import Note, QueueLog, add
from intervalq._watch.rates import Rates
from intervalq._watch.reader import Looked
from intervalq._watch.rows import queue_rows
from intervalq.cli._top.app import histogram
from intervalq.errors import InvalidOption
from intervalq.testing import virtual_clock

FIRST = 1_000_000_000.0


def line(queue: str = "api", shard: str = "host:1:1", **fields: object) -> str:
    return json.dumps({"queue": queue, "shard": shard, **fields}) + "\n"


def start(number: int, late: float = 0.0, queue: str = "api") -> str:
    due = FIRST + number * 0.1
    return line(queue, ticket=number, due=due, started=due + late)


SETTINGS = line(at=FIRST, interval=0.1, tolerance=0.01, burst=1, max_running=None, limits=[])


def followed(path: Path, text: str) -> dict[str, str]:
    path.write_text(text)
    with closing(Logs([path])) as logs:
        logs.read()
    return dict(logs.seen("api").facts)


def count(logs: Logs) -> int:
    """How many gaps are known."""
    logs.read()
    gaps = logs.seen("api").gaps
    return 0 if gaps is None else sum(gaps.counts)


def test_the_last_starts_are_judged_by_the_promise(tmp_path: Path) -> None:
    text = SETTINGS + start(1) + start(2) + start(3, 0.02) + start(4)
    facts = followed(tmp_path / "log", text)
    assert facts["shortest gap"] == "0.8 intervals; of 3, 1 shorter than promised"
    assert facts["lateness"] == "median 0us, 99 % 20ms"
    burst = SETTINGS.replace('"burst": 1', '"burst": 5')
    facts = followed(tmp_path / "log", burst + start(1) + start(2))
    assert facts["shortest gap"] == "1 intervals; of 1, not judged"


def test_unused_slots_by_cause_and_process(tmp_path: Path) -> None:
    text = "".join(
        line(at=FIRST, shard=f"host:{number}:1", unused={"late": number, "away": 1}) for number in range(1, 8)
    )
    (tmp_path / "log").write_text(text + line(at=FIRST, unused={}, refused=2))
    with closing(Logs([tmp_path / "log"])) as logs:
        logs.read()
    facts = [value for name, value in logs.seen("api").facts if name == "unused slots"]
    assert facts[0] == "host:7:1: 7 late, 1 away"
    assert facts[-1] == "2 others: 3 late, 2 away"
    assert len(facts) == 6
    assert ("refused", "2") in logs.seen("api").facts


def test_a_log_is_followed_while_it_grows_is_rotated_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with closing(Logs([path])) as logs:
        assert count(logs) == 0  # it isn't there yet
        path.write_text(SETTINGS + start(1) + start(2) + start(3)[:9])
        assert count(logs) == 1
        with path.open("a") as file:
            file.write(start(3)[9:] + "no JSON\n[]\n{}\n")
        assert count(logs) == 2
        with path.open("a") as file:
            file.write(start(4))
        path.rename(tmp_path / "log.1")
        assert count(logs) == 3  # there is no new one yet
        path.write_text(start(5))
        assert count(logs) == 4
        path.write_text("")
        assert count(logs) == 4
        path.write_text(start(6))
        assert count(logs) == 5
        path.write_text(line(ticket=6, undone=True))
        assert count(logs) == 4


def test_starts_of_several_processes_come_in_any_order(tmp_path: Path) -> None:
    for name, numbers in (("a", (1, 3, 5)), ("b", (2, 4))):
        (tmp_path / name).write_text(SETTINGS + "".join(start(number) for number in numbers))
    with closing(Logs([tmp_path / "b", tmp_path / "a"])) as logs:
        logs.read()
    assert dict(logs.seen("api").facts)["shortest gap"] == "1 intervals; of 4, 0 shorter than promised"


def test_only_the_last_starts_and_queues_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_STARTS", 3)
    monkeypatch.setattr(follow, "_QUEUES", 2)
    monkeypatch.setattr(follow, "_BEFORE", 1_500)
    path = tmp_path / "log"
    path.write_text("".join(start(1, queue=name) for name in "abcde") * 10 + SETTINGS + start(1) + start(2))
    with closing(Logs([path])) as logs:
        assert count(logs) == 1
        assert [bool(logs.seen(name).facts) for name in "abcde"] == [False] * 4 + [True]
        early, late = line(at=FIRST, unused={"late": 1}), line(at=FIRST + 0.9, unused={"away": 1})
        with path.open("a") as file:
            file.write(early + late + "".join(start(number) for number in range(3, 10)))
        assert count(logs) == 2
        assert ("unused slots", "host:1:1: 1 away") in logs.seen("api").facts


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"the log .* can't be read: Is a directory"):
        Logs([tmp_path]).read()


def refuse() -> None:
    error = RuntimeError("429")
    error.response = SimpleNamespace(status_code=429, headers={"Retry-After": "1"})  # type: ignore[attr-defined]
    raise error


def test_a_queue_logs_what_the_server_refused(tmp_path: Path) -> None:
    log = tmp_path / "starts.jsonl"
    with virtual_clock():
        queue = sync.IntervalQueue("api", rate="20/s", retry_after=True, log=log)
        for job in (int, refuse, int, int, refuse):
            with suppress(RuntimeError):
                queue.run(job)
        state = queue.inspect()
        queue.close()
    with closing(Logs([log])) as logs:
        logs.read()
    assert ("refused", "2") in logs.seen("api").facts
    [row] = queue_rows(Looked([state], 0), Rates(), logs)
    assert row.gaps is not None
    assert row.gaps.promise == pytest.approx(0.9)
    assert sum(row.gaps.counts) == 4
    assert row.gaps.counts[-1] == 1  # after the first refusal; the other one is the last job


@pytest.mark.parametrize("each", ["shared", "5/s"])
def test_starts_of_keys_under_one_rate_are_those_of_their_queue(tmp_path: Path, each: str) -> None:
    log = tmp_path / "starts.jsonl"
    with virtual_clock():
        queue = sync.IntervalQueue("llm", rate="20/s", each=each, log=log)
        for number in range(9):
            queue[f"k{number % 3}"].run(int)
        queue.close()
    with closing(Logs([log])) as logs:
        logs.read()
        all_, one = logs.seen("llm").gaps, logs.seen("llm:k1").gaps
    assert all_ is not None
    assert one is not None
    assert (sum(all_.counts), sum(one.counts)) == (8, 2)
    assert all_.counts[20] >= 6  # one interval of 50 ms
    assert all_.promise == pytest.approx(0.9)


def test_a_start_of_a_key_is_taken_back_for_its_queue_too(tmp_path: Path) -> None:
    settings = json.loads(SETTINGS)
    text = ""
    for key in ("a", "b"):
        names = {"queue": f"llm:{key}", "shard": f"host:1:{key}"}
        common = {name: settings[name] for name in ("tolerance", "burst", "max_running", "limits")}
        text += json.dumps({**settings, **names, "common": {**common, "interval": 0.05}}) + "\n"
        text += line(**names, ticket=1, due=FIRST, started=FIRST + (key == "b"))
    text += line("llm:a", shard="host:1:a", ticket=1, undone=True)
    text += start(2, queue="plain:a")  # no settings: a key that is a queue of its own
    found: dict[str, QueueLog] = {}
    for each in text.splitlines():
        add(found, "log", json.loads(each))
    assert {name: [*queue.started] for name, queue in found.items()} == {
        "llm:a": [],
        "llm:b": [FIRST + 1],
        "llm": [FIRST + 1],
        "plain:a": [FIRST + 0.2],
    }
    assert found["llm"].paces[0].interval == 0.05


async def test_refusals_stand_beside_the_rates() -> None:
    queue = IntervalQueue("api", rate="10/s", store="memory://")
    await queue.run(checkpoint)
    state, rates = await queue.inspect(), Rates()
    for seconds in (0, 2, 4):
        rates.take([replace(state, now=state.now + seconds)])
    assert [point.refused for point in rates.points("api")] == [None, None]
    notes = [Note(state.now + at, "", {}, refused) for at, refused in ((0, 9), (1.5, 1), (2, 2), (3, 1))]
    assert [point.refused for point in rates.points("api", notes)] == [1.5, 0.5]


def test_the_histogram_on_a_terminal() -> None:
    counts = [0] * 41
    counts[20], counts[21], counts[17] = 1000, 30, 1
    drawn = histogram(follow.Gaps(counts, 0.9))
    assert drawn == f"0 {' ' * 17}▁│  █▄{' ' * 19} 2 intervals and more"
    assert "│" not in histogram(follow.Gaps(counts, None))

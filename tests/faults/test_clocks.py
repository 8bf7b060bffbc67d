"""Wrong clocks of shards, of a server and of a machine, and clocks that began at different times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

import postgres_servers
import servers
from faults.called import now
from faults.fake_clock import FakeClock
from faults.needs import need_namespaces, need_server
from faults.trial import Trial
from servers import Server

BROKEN: Final = Path(__file__).with_name("broken_shard.py")

HOUR: Final = 3_600

STEPS: Final = (HOUR, -HOUR, 30, 0)
"""Seconds that a clock is off, one after the other: forward, back, forward, back."""


@pytest.fixture
def make_clock() -> Iterator[Callable[[], FakeClock]]:
    made: list[FakeClock] = []

    def make() -> FakeClock:
        made.append(FakeClock())
        return made[-1]

    yield make
    for clock in made:
        clock.close()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_wall_clocks_of_shards_change_nothing(
    kind: str, make_clock: Callable[[], FakeClock], request: pytest.FixtureRequest
) -> None:
    clocks = [make_clock() for _ in range(3)]
    with Trial(request.getfixturevalue(f"{kind}_url"), callers=2) as trial:
        for clock in clocks:
            trial.shards.start(environment=clock.environment)
        trial.go_on()
        for turn in range(4):
            for number, clock in enumerate(clocks):
                clock.set(HOUR * (-1) ** (turn + number))
            trial.go_on()
        verdict = trial.verdict()
    assert not verdict.broken
    assert verdict.unexplained == verdict.stepped == 0
    assert verdict.starts >= 3 * 2 * 5


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_server_whose_clock_is_set_forward_and_back_goes_on(
    kind: str, make_clock: Callable[[], FakeClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = make_clock()
    server = _server(kind)
    try:
        with monkeypatch.context() as patch:
            for name, value in clock.environment.items():
                patch.setenv(name, value)
            server.start()
        _set_forward_and_back(clock, server.url)
    finally:
        server.close()


@pytest.mark.parametrize("url", ["file://{}/state.json", "sqlite://{}/state.db"])
def test_a_machine_whose_clock_is_set_forward_and_back_goes_on(
    url: str, make_clock: Callable[[], FakeClock], tmp_path: Path
) -> None:
    clock = make_clock()
    _set_forward_and_back(clock, url.format(tmp_path), clock.environment)


def _set_forward_and_back(clock: FakeClock, url: str, environment: dict[str, str] | None = None) -> None:
    with Trial(url, callers=2) as trial:
        for _ in range(3):
            trial.shards.start(environment=environment)
        trial.go_on()
        for offset in STEPS:
            trial.steps.append(clock.set(offset))
            trial.go_on()  # within a minute, although the clock goes back by two hours
        verdict = trial.verdict()
    assert not verdict.broken
    assert verdict.unexplained == 0
    assert verdict.starts >= 3 * 2 * (1 + len(STEPS))


def test_processes_whose_clocks_began_at_other_times_agree(redis_url: str) -> None:
    with Trial(redis_url, callers=2) as trial:
        _begin_with_clocks_of_their_own(trial)
        trial.go_on(5)
        verdict = trial.verdict()
    assert not verdict.broken
    assert verdict.unexplained == 0
    assert verdict.starts >= 3 * 5


def test_processes_that_compare_clocks_of_their_own_are_convicted(tmp_path: Path) -> None:
    bug = ("--bug", "own-clock", "--patience", "5")
    with Trial(f"file://{tmp_path}/state.json", callers=2, script=BROKEN, more=bug) as trial:
        begun = time.monotonic()
        rounds = 0

        def have_come_together() -> bool:
            """More processes come every ten seconds: those that see a step in each answer hardly begin."""
            nonlocal rounds
            if time.monotonic() >= begun + 10 * rounds:
                _begin_with_clocks_of_their_own(trial)
                rounds += 1
            return _have_come_together(trial)

        servers.until(have_come_together)
        verdict = trial.verdict()
    assert [what for what in verdict.broken if what.startswith("spacing:")]


def _have_come_together(trial: Trial) -> bool:
    checks = sorted(start.check for start in trial.called.taken())
    return any(later - earlier < trial.interval // 2 for earlier, later in pairwise(checks))


def _begin_with_clocks_of_their_own(trial: Trial) -> None:
    need_namespaces("--time")
    for seconds in (0, 90 * 24 * HOUR, -now() // 2_000_000):
        before = ["unshare", "--time", "--monotonic", str(seconds), "--boottime", str(seconds)]
        trial.shards.start(before=[*before, "--fork", "--kill-child"], base=seconds * 1_000_000)


def test_a_fake_clock_is_seen_and_the_time_since_boot_is_not_faked(
    make_clock: Callable[[], FakeClock],
) -> None:
    clock = make_clock()
    clock.set(-HOUR)
    script = "import json, time; from faults.called import now; print(json.dumps([time.time(), now()]))"
    environment = {**os.environ, **clock.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, check=True
    ).stdout
    wall, since_boot = json.loads(output)
    assert time.time() - wall > HOUR - 1
    assert abs(now() - since_boot) < HOUR * 1_000_000 - 1


def _server(kind: str) -> Server:
    try:
        if kind == "postgres":
            return postgres_servers.postgres()
        return servers.redis_server(servers.redis_binary())
    except servers.NotInstalledError as error:
        need_server(error)

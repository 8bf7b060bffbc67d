"""The findings of `intervalq doctor` about limits."""

from __future__ import annotations

import json

import pytest

from cli.command_line import CommandLine
from intervalq import Limit
from intervalq._spec.limits import rules_of
from intervalq.cli._doctor.limits import about_limits
from intervalq.rules import Auto, Settings

SECOND = 1_000_000
HUNDRED = 10_000
"""The interval of 100/s."""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(50_000, limits=rules_of(["600/min", "30_000 tokens/min"])), []),
        (Settings(HUNDRED, limits=rules_of(["6_000/min"])), []),
        (Settings(HUNDRED, limits=rules_of(["6_200/min"])), ["6200/m never delays a job: one start in 10ms"]),
        (Settings(HUNDRED, burst=200, limits=rules_of(["6_200/min"])), []),
        (
            Settings(SECOND, auto=Auto(SECOND, HUNDRED), limits=rules_of(["99/s", "400/2s"])),
            ["400/2s never delays a job"],
        ),
        (Settings(HUNDRED, limits=rules_of(["30_000 tokens/min"])), []),
        (Settings(HUNDRED, burst=20, limits=rules_of(["10/100ms"])), ["burst of 20 is larger"]),
        (Settings(1, burst=1_000, limits=rules_of(["10/s"])), []),
        (Settings(HUNDRED), []),
    ],
)  # fmt: skip
def test_limits_that_contradict_the_pace(settings: Settings, says: list[str]) -> None:
    found = about_limits("api", settings, is_remote=False)
    assert [level for level, _ in found] == ["warning"] * len(says)
    assert all(text in what for text, (_, what) in zip(says, found, strict=True))
    assert all(what.startswith("queue 'api': ") for _, what in found)


@pytest.mark.parametrize("jitter", [0, 0.05])
def test_far_servers_need_a_jitter(jitter: float) -> None:
    settings = Settings(100_000, limits=rules_of([Limit(600, 60, jitter=jitter)]))
    assert bool(about_limits("api", settings, is_remote=True)) is not bool(jitter)


def test_doctor_looks_at_all_queues(intervalq: CommandLine) -> None:
    intervalq("exec", "--name", "plain", "--interval", "10ms", "--", "true")
    intervalq("exec", "--name", "api", "--interval", "10ms", "--limit", "200/s", "--", "true")
    found = json.loads(intervalq("doctor", "--json").stdout)
    assert [one["level"] for one in found["advice"] if "'api'" in one["what"]] == ["warning"]
    assert "warning  queue 'api': the limit 200/s never" in intervalq("doctor").stdout

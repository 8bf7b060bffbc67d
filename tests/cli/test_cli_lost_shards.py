"""Jobs of `intervalq run` whose shard has died, and jobs that wait for their next attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from backends import both_backends
from intervalq.cli._run.children import Running, Task
from intervalq.cli._run.jobs import Job
from intervalq.cli._run.parent import Runner
from intervalq.cli._run.results import Result
from intervalq.cli._run.tally import Tally

anyio_backend = both_backends


async def nothing() -> AsyncIterator[tuple[Job, int]]:
    jobs: list[tuple[Job, int]] = []
    for job in jobs:
        yield job


async def forget(_: Result) -> None:
    """Ignore the results."""


async def keep(_: Runner) -> None:
    """Give nothing back."""


async def test_jobs_of_a_lost_shard_are_next_and_in_their_order() -> None:
    runner = Runner(
        nothing(), options={}, shards=2, window=3, retries=0, tally=Tally(), write=forget, give_back=keep
    )
    job = Job("x", ("true",))
    lost, other = runner._shards
    for number in (1, 3, 5):
        lost.waiting[number] = Task(number, job, 1, 1)
    other.waiting[2] = Task(2, job, 1, 1)
    runner._backlog.extend(Task(number, job, 1, 1) for number in (6, 7))
    runner._take_back(lost)
    assert [task.number for task in runner._backlog] == [1, 3, 5, 6, 7]
    assert (list(lost.waiting), list(other.waiting)) == ([], [2])


async def test_jobs_that_wait_for_their_next_attempt_have_a_result_when_the_run_is_stopped() -> None:
    runner = Runner(
        nothing(), options={}, shards=1, window=3, retries=3, tally=Tally(), write=forget, give_back=keep
    )
    (shard,) = runner._shards
    async with anyio.create_task_group() as runner._background:
        for number in (1, 2):
            shard.running[number] = Running(Task(number, Job("x", ("false",)), 1, 4), number, 0.0, 0.0)
            runner._heard(shard, {"ended": number, "at": 1.0, "exit_code": 7, "stdout": "", "stderr": ""})
        assert not runner._results
        runner._stop()
        assert [(result.ticket, result.exit_code) for result in runner._results] == [(1, 7), (2, 7)]
        assert (runner.tally.done, runner.tally.failed) == (2, 2)
        runner._background.cancel_scope.cancel()

"""What happens to jobs that were given to a shard of `intervalq run` which then died."""

from __future__ import annotations

from collections.abc import AsyncIterator

from backends import both_backends
from intervalq.cli._run.children import Task
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

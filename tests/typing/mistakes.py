# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Never run: mistakes of users, each of which both type checkers find.

Both heed `type: ignore`, and report one without an error, so a mistake that one of them no longer finds
fails the check.
"""

from __future__ import annotations

from intervalq import IntervalQueue
from intervalq.schedules import Occurrence, Schedules
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq.tasks import Claim, Tasks
from intervalq.testing import virtual_time

queue = IntervalQueue("typed", rate="10/s", store="memory://")
blocking = BlockingQueue("typed", rate="10/s", store="memory://")
tasks = Tasks("memory://")
schedules = Schedules("memory://")


@queue
async def fetch(path: str) -> dict[str, int]:
    return {path: 1}


async def answer() -> str:
    return "42"


async def mistakes() -> None:
    # 1. The call instead of the function: it would run before its slot.
    await queue.run(answer())  # type: ignore[arg-type]

    # 2. `await` is forgotten: nothing is paused.
    queue.pause()  # type: ignore[unused-coroutine]

    # 3. A blocking `with` around an async slot.
    with queue.slot():  # type: ignore[attr-defined]
        pass

    # 4. An async `with` around a blocking slot.
    async with blocking.slot():  # type: ignore[attr-defined]
        pass

    # 5. A job is taken for its result.
    print((await queue.add(answer)).upper())  # type: ignore[attr-defined]

    # 6. A decorated function gets what it can't take.
    await fetch(7)  # type: ignore[arg-type]

    # 7. Costs are whole numbers.
    await queue.run(answer, cost={"tokens": 0.5})  # type: ignore[dict-item]

    # 8. What was settled is computed from the result, which is text here.
    await queue.run(answer, cost={"tokens": 9}, settle=lambda text: {"tokens": text})  # type: ignore[dict-item]
    # 9. Options of a job that a slot doesn't have.
    async with queue.slot(retries=3):  # type: ignore[call-arg]
        pass


# 10. One limit, where a list is expected: each letter would be a limit.
IntervalQueue("limits", limits="500/min")  # type: ignore[arg-type]

# 11. A policy that there isn't.
IntervalQueue("policy", rate="10/s", on_mismatch="ignore")  # type: ignore[arg-type]


# 12. A worker function that takes no claim.
@tasks.worker("letters")  # type: ignore[type-var]
async def no_claim() -> None:
    pass


# 13. A worker function that takes the value instead of the claim.
@tasks.worker("letters")  # type: ignore[type-var]
async def of_value(letter: str) -> None:
    pass


# 14. A chunk's function gets a list of claims.
@tasks.worker("letters", batch=10)  # type: ignore[type-var]
async def of_one(claim: Claim) -> None:
    pass


# 15. A schedule's function that takes two arguments.
@schedules.every("5m")  # type: ignore[type-var]
async def two(occurrence: Occurrence, other: int) -> None:
    pass


# 16. A policy of schedules that there isn't.
@schedules.every("5m", misfire="never")  # type: ignore[arg-type]
async def never() -> None:
    pass


# 17. The decorator of schedules without its interval.
@schedules.every  # type: ignore[arg-type]
async def bare() -> None:
    pass


# 18. A call instead of a function, to be run in virtual time.
virtual_time(answer())  # type: ignore[arg-type]

# 20. An argument of the wrong type for the function that is called.
blocking.run(len, 7)  # type: ignore[arg-type]

# 19. An async worker function for blocking code.
blocking.run(answer).upper()  # type: ignore[attr-defined]

"""Tasks that may have killed a process: each runs alone, after its start was reported to the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.intake import Intake
from intervalq.tasks._worker.outcomes import Outcomes


async def run_suspect(
    claim: Claim,
    do: Callable[[Claim], Awaitable[None]],
    session: WorkSession,
    intake: Intake,
    outcomes: Outcomes,
) -> None:
    """Run such a task by `do`, while nothing else of the session runs; or give it back."""
    gate = session.run_alone
    key = gate.close()
    try:
        if intake.job.policy.exhausted(claim) is None:
            await gate.quiet()
        if claim.open and not intake.stopping and not claim._row.begun:
            session.batcher.poke()
            await session.batcher.begun.first(claim)
            claim._began = True
        if intake.stopping or session.is_in_doubt(claim):
            outcomes.unused(claim)
        elif claim.open:
            await do(claim)
    except BaseException:
        if claim.open:
            outcomes.unused(claim)
        raise
    finally:
        gate.open(key)

"""Tasks that may have killed a process: each runs alone, after its start was reported to the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.intake import Intake
from intervalq.tasks._worker.outcomes import Outcomes


async def tell(claim: Claim, session: WorkSession) -> bool:
    """Tell the store that a task begins, if it must know that before; returns whether it was told now."""
    if not (claim.open and claim._row.alone) or claim._began or claim._row.begun:
        return False
    session.batcher.poke()
    await session.batcher.begun.first(claim)
    claim._began = True
    return True


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
        if intake.job.pace is None and not intake.stopping:
            await tell(claim, session)  # otherwise, once its slot has come
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

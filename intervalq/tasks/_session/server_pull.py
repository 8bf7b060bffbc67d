"""For stores with pull consumers: calls wait for tasks at the server, single claims are settled at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import anyio

from intervalq._timing.outage import LoopOutage
from intervalq.errors import IntervalqError, StoreUnavailable, TransactionConflict
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.ports import OwnSession
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks.rules import Work
from intervalq.tasks.store import Pulling

_MAX_WAIT: Final = 30.0
"""Seconds after which a request that waits at the server expires and is repeated."""


async def pull(session: OwnSession, store: Pulling, work: Work, timeout: float | None) -> list[Claim]:
    """Claim ready tasks; if there are none, wait `timeout` seconds for the first (0: don't; None: for ever).

    Raises:
        StoreError: the store can't be asked; if it is unreachable, when the time is up, or after a minute.
    """
    now = anyio.current_time
    end = now() + (math.inf if timeout is None else timeout)
    outage = LoopOutage()
    while True:
        try:
            if work.session != (id_ := await session.ready()):
                work = replace(work, session=id_)
            rows = await store.pull(work, max(0.0, min(end - now(), _MAX_WAIT)))
        except StoreUnavailable:
            if outage.failed() or now() >= end:
                raise
            await outage.pause()
        else:
            outage.ended()
            if rows or now() >= end:
                claims = session.batcher.take(rows)
                for claim in claims:
                    claim._began, claim._lease = True, work.lease
                return claims


async def settle(session: OwnSession, settle: Settle) -> None:
    """Settle a claim by a call of its own, if there is nothing else to send; otherwise with the others."""
    batcher = session.batcher
    if not batcher.at_rest:
        batcher.settle(settle)
        return
    claim, id_ = settle.claim, batcher.session
    claim.open = settle.keeps
    batcher.busy += 1
    try:
        worked = await session.store.apply(Work(id_, (settle.now(),)))
    except (StoreUnavailable, TransactionConflict) as error:
        settle.again = isinstance(error, StoreUnavailable)
        if session.holds(claim):
            batcher.settle(settle)
        else:  # the session has lapsed meanwhile, and another one doesn't know the claim
            settle.lost = True
            settle.end()
    except IntervalqError as error:
        settle.error, claim.open = error, session.holds(claim)
        settle.end()
    except BaseException:
        settle.again, settle.waker = True, None  # it is still done, however long that takes
        batcher.settle(settle)
        raise
    else:
        is_past = batcher.session != id_  # the session has lapsed meanwhile; its successor is alive
        batcher.answered([settle], replace(worked, alive=worked.alive or is_past))
    finally:
        batcher.busy -= 1
        if batcher.wanted or batcher.hurries or not batcher.at_rest:  # otherwise nothing would send it
            batcher.poke()

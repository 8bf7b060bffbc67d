"""With a store that has pull consumers: who waits for tasks waits there, and one claim is settled at once."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from intervalq.errors import IntervalqError, StoreUnavailable, TransactionConflict
from intervalq.tasks._demand import FIRST_POLL, LAST_POLL
from intervalq.tasks._desk import PATIENCE
from intervalq.tasks._settle import Settle
from intervalq.tasks._task import Claim
from intervalq.tasks.rules import Work
from intervalq.tasks.store import Pulling

if TYPE_CHECKING:
    from intervalq.tasks._session import WorkSession

_LONGEST: Final = 30.0
"""Seconds after which a request that waits at the store expires, and is made again."""


async def pull(session: WorkSession, store: Pulling, work: Work, timeout: float | None) -> list[Claim]:
    """Claim what there is; else wait `timeout` seconds for what comes first (0: don't; None: for ever).

    Raises:
        StoreError: it can't be asked; of one that is away, when the time is up, or after a minute.
    """
    now = anyio.current_time
    since = now()
    end = since + (math.inf if timeout is None else timeout)
    pause = FIRST_POLL
    while True:
        if work.session != (id_ := await session.ready()):
            work = replace(work, session=id_)
        try:
            rows = await store.pull(work, max(0.0, min(end - now(), _LONGEST)))
        except StoreUnavailable:
            if now() >= end or now() - since > PATIENCE:
                raise
            await anyio.sleep(random.uniform(0, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, LAST_POLL)
        else:
            if rows or now() >= end:
                claims = session.desk.take(rows)
                for claim in claims:
                    claim.began, claim.lease = True, work.lease
                return claims


async def settle(session: WorkSession, settle: Settle) -> None:
    """Settle a claim by a call of its own, if there is nothing else to be told; else with the others."""
    desk = session.desk
    if not desk.at_rest:
        desk.settle(settle)
        return
    claim = settle.claim
    claim.open = settle.keeps
    desk.busy += 1
    try:
        worked = await session.store.apply(Work(desk.session, (settle.now(),)))
    except (StoreUnavailable, TransactionConflict) as error:
        settle.again = isinstance(error, StoreUnavailable)
        desk.settle(settle)
    except IntervalqError as error:
        settle.error, claim.open = error, session.holds(claim)
        settle.end()
    except BaseException:
        settle.again, settle.bell = True, None  # it is done all the same, however long that takes
        desk.settle(settle)
        raise
    else:
        desk.answered([settle], worked)
    finally:
        desk.busy -= 1
        if desk.wanted or desk.hurries or not desk.at_rest:  # else nobody waits for it
            desk.poke()

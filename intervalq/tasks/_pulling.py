"""Claims from a store that has pull consumers itself: who waits for tasks waits there."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from intervalq.errors import StoreUnavailable
from intervalq.tasks._demand import FIRST_POLL, LAST_POLL
from intervalq.tasks._desk import PATIENCE
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
        work = replace(work, session=await session.ready())
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

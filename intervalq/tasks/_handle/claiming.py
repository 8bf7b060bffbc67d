"""The part of `Tasks` that claims tasks without a worker, and settles several claims together."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from intervalq._queue.options import Duration, wait_of, whole
from intervalq._spec import parse
from intervalq.errors import InvalidOption
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._handle.ended import Ended
from intervalq.tasks._handle.pull import Pull
from intervalq.tasks._worker.workers import names_of
from intervalq.tasks.store import MAX_ROWS, Isolation


class Claiming(Ended):
    """Claims by hand."""

    async def claim(
        self, *queues: str, lease: Duration | None = None, timeout: Duration | None = None
    ) -> Claim:
        """Claim a task from any of the queues; wait until there is one.

        Args:
            queues: tried in random order, so that long queues don't starve short ones.
            lease: the claim expires after this time. None: it holds while this process lives.
            timeout: how long to wait; None: without limit; 0: ask the store once. A request that is in flight
                when the time is up is awaited for up to a second.

        Raises:
            TimeoutError: none came in time.
            StoreError: the store can't be reached, or can't be trusted.
        """
        seconds = wait_of(timeout)
        claims = await self._claims(queues, 1, lease, once=seconds == 0, timeout=seconds or None)
        if not claims:
            raise TimeoutError(f"no task of {', '.join(queues)} came within {seconds:g} s")
        return claims[0]

    async def try_claim(self, *queues: str, lease: Duration | None = None) -> Claim | None:
        """Claim a task that is ready now; None: there is none. Args as for `claim`."""
        claims = await self._claims(queues, 1, lease, once=True)
        return claims[0] if claims else None

    def commit(
        self, *claims: Claim, isolation: Isolation = "read committed"
    ) -> AbstractAsyncContextManager[Any]:
        """Write results in a transaction of the store's database; at its end all the tasks are removed.

        For one claim, see `Claim.commit`. Results and removals are committed together or not at all: if one
        of the claims was lost, nothing is written, and the others are still claimed (`claim.open`).

        Args:
            claims: up to 1,000 claims of this handle, for example those of a chunk.
            isolation: as for `Claim.commit`.

        Raises:
            InvalidOption: there are none or too many claims, or they are of several handles or consumers.
            ClaimLost, TransactionConflict, UnsupportedOperation: as for `Claim.commit`.
        """
        given = tuple(dict.fromkeys(claims))
        holders = {id(claim._session): claim._session for claim in given}
        if len(holders) != 1 or len(given) > MAX_ROWS:
            raise InvalidOption(
                f"commit takes 1 to {MAX_ROWS} claims of one handle and pull consumer, "
                f"not {len(given)} of {len(holders)}"
            )
        (holder,) = holders.values()
        return holder.commit(given, isolation)

    def pull(
        self, *queues: str, name: str, max_waiting: int = 512, max_ack_pending: int | None = 1000
    ) -> Pull:
        """A durable pull consumer: `fetch` returns up to n claims, `async for claim in pull` all. See `Pull`.

        Args:
            queues: the queues to fetch from.
            name: processes that use the same name share its limit of unacknowledged claims.
            max_waiting: how many calls of `fetch` may wait in this process at the same time.
            max_ack_pending: how many claims may be unsettled, over all processes (on NATS in each). None: no
                limit.
        """
        return Pull(
            parse.name(name),
            names_of(queues),
            lambda: self._session(name),
            whole("max_waiting", max_waiting, 1),
            None if max_ack_pending is None else whole("max_ack_pending", max_ack_pending, 1),
        )

    async def _claims(
        self,
        queues: tuple[str, ...],
        limit: int,
        lease: Duration | None,
        *,
        once: bool = False,
        timeout: float | None = None,
    ) -> list[Claim]:
        micros = None if lease is None else parse.duration(lease, least=1, what="lease")
        return await self._session().claims(names_of(queues), limit, lease=micros, once=once, timeout=timeout)

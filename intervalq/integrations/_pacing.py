"""What the clients share: finding the queue of a request, and cool-downs that responses request."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar, cast

from intervalq._queue.queue import IntervalQueue
from intervalq._shard.grants import Grant
from intervalq._timing.retry_after import wait_in_response
from intervalq.errors import IntervalqError
from intervalq.sync import IntervalQueue as BlockingQueue


class _Keyed(Protocol):
    def __getitem__(self, key: str) -> Self: ...


Q = TypeVar("Q", bound=_Keyed)


class _Refused(Protocol):
    async def _refused(self, grant: Grant, seconds: float) -> None: ...


class _BlockingRefused(Protocol):
    def _refused(self, grant: Grant, seconds: float) -> None: ...


def queue_of(queue: Q, key: str | None) -> Q:
    """The queue for a request: that of its key, if it has one."""
    return queue if key is None else queue[key]


def blocking_of(queue: IntervalQueue | BlockingQueue) -> BlockingQueue:
    """The queue for blocking code."""
    return queue if isinstance(queue, BlockingQueue) else cast("BlockingQueue", queue.blocking)


async def heed(queue: _Refused, grant: Grant, status: int, headers: Mapping[str, Any]) -> None:
    """Cool a queue down if a response requests it, and cut an automatic rate if it is a refusal.

    The caller gets the response in any case.
    """
    if (wait := wait_in_response(status, headers, bare=True)) is not None:
        with suppress(IntervalqError):  # such as a closed queue; the next request raises it
            await queue._refused(grant, wait)


def heed_blocking(queue: _BlockingRefused, grant: Grant, status: int, headers: Mapping[str, Any]) -> None:
    """The same as `heed`, for blocking code."""
    if (wait := wait_in_response(status, headers, bare=True)) is not None:
        with suppress(IntervalqError):  # as above
            queue._refused(grant, wait)

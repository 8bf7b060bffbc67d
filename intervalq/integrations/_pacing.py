"""What the clients share: finding the queue of a request, and cool-downs that responses request."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar

from intervalq._timing.retry_after import wait_in_response
from intervalq.errors import IntervalqError


class _Keyed(Protocol):
    def __getitem__(self, key: str) -> Self: ...


Q = TypeVar("Q", bound=_Keyed)


class _Cooled(Protocol):
    async def cool_down(self, seconds: float) -> None: ...


class _BlockingCooled(Protocol):
    def cool_down(self, seconds: float) -> None: ...


def queue_of(queue: Q, key: str | None) -> Q:
    """The queue for a request: that of its key, if it has one."""
    return queue if key is None else queue[key]


async def heed(queue: _Cooled, status: int, headers: Mapping[str, Any]) -> None:
    """Cool a queue down if a response requests it; the caller gets the response in any case."""
    if (wait := wait_in_response(status, headers)) is not None:
        with suppress(IntervalqError):  # such as a closed queue; the next request raises it
            await queue.cool_down(wait)


def heed_blocking(queue: _BlockingCooled, status: int, headers: Mapping[str, Any]) -> None:
    """The same as `heed`, for blocking code."""
    if (wait := wait_in_response(status, headers)) is not None:
        with suppress(IntervalqError):  # as above
            queue.cool_down(wait)

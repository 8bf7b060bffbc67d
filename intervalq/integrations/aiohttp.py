"""A client middleware for aiohttp that waits for a slot of a queue before each request."""

from __future__ import annotations

from collections.abc import Callable

from intervalq._queue.queue import IntervalQueue
from intervalq.errors import MissingExtra
from intervalq.integrations._pacing import heed, queue_of

try:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
except ImportError as missing:  # or it is older than 3.12
    raise MissingExtra("intervalq.integrations.aiohttp", "aiohttp") from missing


class PacedMiddleware:
    """For `aiohttp.ClientSession(middlewares=[...])`, or one request's `middlewares`.

    A redirect is a request of its own. A response with status 429 or 503 and a Retry-After or reset header
    cools the queue down for everybody, and is returned as it is. A slot ends when the head of the response
    has arrived. The wait for a slot counts for the `total` of a `ClientTimeout`, 5 minutes by default.

    Args:
        queue: a queue of the session's event loop.
        key: returns the key of the queue that a request belongs to; None: the queue itself.
    """

    def __init__(
        self, queue: IntervalQueue, *, key: Callable[[ClientRequest], str | None] | None = None
    ) -> None:
        self._queue = queue
        self._key = key or (lambda _: None)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Wait for a slot, and send the request."""
        queue = queue_of(self._queue, self._key(request))
        async with queue.slot() as slot:
            response = await handler(request)
            try:
                await heed(queue, slot._grant, response.status, response.headers)
            except BaseException:
                response.close()
                raise
            return response

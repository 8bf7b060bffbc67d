"""A transport for httpx, async or blocking, that waits for a slot of a queue before each request."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

from intervalq._queue.options import Cost
from intervalq._queue.queue import IntervalQueue
from intervalq._queue.slot import Slot
from intervalq.integrations._httpx import httpx
from intervalq.integrations._pacing import blocking_of, heed, heed_blocking, queue_of
from intervalq.sync import IntervalQueue as BlockingQueue


class PacedTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """For `httpx.AsyncClient(transport=...)` and `httpx.Client(transport=...)`.

    A redirect is a request of its own. A response with status 429 or 503 and a Retry-After or reset header
    cools the queue down for everybody, and is returned as it is. A slot ends when the head of the response
    has arrived.

    Args:
        queue: of `intervalq` or `intervalq.sync`; the latter only for blocking clients.
        transport: what sends the requests; None: httpx's own.
        key: returns the key of the queue that a request belongs to; None: the queue itself.
    """

    def __init__(
        self,
        queue: IntervalQueue | BlockingQueue,
        transport: httpx.AsyncBaseTransport | httpx.BaseTransport | None = None,
        *,
        key: Callable[[httpx.Request], str | None] | None = None,
    ) -> None:
        self._queue = queue
        self._given = transport
        self._key = key or (lambda _: None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for a slot, and send the request."""
        if not isinstance(self._queue, IntervalQueue):
            raise TypeError(f"an async client needs an intervalq.IntervalQueue, not {self._queue!r}")
        queue, transport = queue_of(self._queue, self._key(request)), self._async  # made before the slot
        async with queue.slot(cost=self._cost(request)) as slot:
            response = await transport.handle_async_request(request)
            try:
                await self._heed(queue, slot, response)
            except BaseException:
                await response.aclose()
                raise
            return response

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for a slot, and send the request."""
        queue, transport = queue_of(blocking_of(self._queue), self._key(request)), self._blocking  # as above
        with queue.slot(cost=self._cost(request)) as slot:
            response = transport.handle_request(request)
            try:
                self._heed_blocking(queue, slot, response)
            except BaseException:
                response.close()
                raise
            return response

    def _cost(self, request: httpx.Request) -> Cost:  # noqa: ARG002 - for subclasses
        """The cost of a request."""
        return 1

    async def _heed(self, queue: IntervalQueue, slot: Slot, response: httpx.Response) -> None:
        """Apply what a response requests of the queue."""
        await heed(queue, slot._grant, response.status_code, response.headers)

    def _heed_blocking(self, queue: BlockingQueue, slot: Slot, response: httpx.Response) -> None:
        """The same as `_heed`, for blocking code."""
        heed_blocking(queue, slot._grant, response.status_code, response.headers)

    async def aclose(self) -> None:
        """Close the transport, but not the queue."""
        await self._async.aclose()

    def close(self) -> None:
        """Close the transport, but not the queue."""
        self._blocking.close()

    @cached_property
    def _async(self) -> httpx.AsyncBaseTransport:
        return cast("httpx.AsyncBaseTransport", self._given or httpx.AsyncHTTPTransport())

    @cached_property
    def _blocking(self) -> httpx.BaseTransport:
        return cast("httpx.BaseTransport", self._given or httpx.HTTPTransport())

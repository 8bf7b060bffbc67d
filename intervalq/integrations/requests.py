"""An adapter for requests that waits for a slot of a queue before each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from intervalq._queue.queue import IntervalQueue
from intervalq.errors import MissingExtra
from intervalq.integrations._pacing import blocking_of, heed_blocking, queue_of
from intervalq.sync import IntervalQueue as BlockingQueue

try:
    from requests import PreparedRequest, Response
    from requests.adapters import HTTPAdapter
except ImportError as missing:
    raise MissingExtra("intervalq.integrations.requests", "requests") from missing


class PacedAdapter(HTTPAdapter):
    """For `session.mount("https://api.example.com/", PacedAdapter(queue))`.

    A redirect is a request of its own, but `max_retries` repeats a request within its slot. A response with
    status 429 or 503 and a Retry-After or reset header cools the queue down for everybody, and is returned as
    it is. A slot ends when the response has arrived: with `stream=True`, its head.

    Args:
        queue: of `intervalq.sync` or `intervalq`.
        key: returns the key of the queue that a request belongs to; None: the queue itself. A session can
            only be pickled if this function can.
        options: those of `requests.adapters.HTTPAdapter`.
    """

    __attrs__ = [*HTTPAdapter.__attrs__, "_key", "_queue"]  # noqa: RUF012 - what requests pickles

    def __init__(
        self,
        queue: BlockingQueue | IntervalQueue,
        *,
        key: Callable[[PreparedRequest], str | None] | None = None,
        **options: Any,
    ) -> None:
        self._queue = queue
        self._key = key
        super().__init__(**options)

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Wait for a slot, and send the request."""
        queue = queue_of(blocking_of(self._queue), None if self._key is None else self._key(request))
        with queue.slot() as slot:
            response = super().send(request, *args, **options)
            heed_blocking(queue, slot._grant, response.status_code, response.headers)
            return response

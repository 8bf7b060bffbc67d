"""A transport for clients of OpenAI-style APIs: requests and tokens a minute, as the server's headers say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from intervalq._queue.options import Cost
from intervalq._queue.queue import IntervalQueue
from intervalq._queue.slot import Slot
from intervalq.errors import IntervalqError
from intervalq.integrations._httpx import httpx
from intervalq.integrations._named_limits import merged, named_limits
from intervalq.integrations._tokens import most_tokens as most_tokens  # noqa: PLC0414 - users call it
from intervalq.integrations._tokens import settle_when_read
from intervalq.integrations.httpx import PacedTransport
from intervalq.sync import IntervalQueue as BlockingQueue


class OpenAITransport(PacedTransport):
    """For `AsyncOpenAI(http_client=httpx.AsyncClient(transport=...))` and `OpenAI(http_client=...)`.

    Each request takes a start and its tokens of the queue's limits, and settles the tokens that a JSON answer
    reports. If the server's headers name other numbers for the queue's limits per minute, the queue is
    configured to these, for everybody. For everything else see `PacedTransport`.

    Args:
        queue: begins with a limit of tokens, for example `limits=["60/min", "40_000 tokens/min"]`.
        transport: what sends the requests; None: httpx's own.
        key: as for `PacedTransport`. Servers limit each model separately: give each its own queue or key.
        tokens: returns the most tokens that a request can take; with too few, the server may refuse it.
    """

    def __init__(
        self,
        queue: IntervalQueue | BlockingQueue,
        transport: httpx.AsyncBaseTransport | httpx.BaseTransport | None = None,
        *,
        key: Callable[[httpx.Request], str | None] | None = None,
        tokens: Callable[[httpx.Request], int] = most_tokens,
    ) -> None:
        super().__init__(queue, transport, key=key)
        self._tokens = tokens
        # With each queue itself, so that the handles of keys, which know these limits' units, are kept.
        self._learned: dict[str, tuple[object, dict[str, int]]] = {}
        self._learning: set[str] = set()

    def _cost(self, request: httpx.Request) -> Cost:
        return {"tokens": self._tokens(request)}

    async def _heed(self, queue: IntervalQueue, slot: Slot, response: httpx.Response) -> None:
        await super()._heed(queue, slot, response)
        settle_when_read(slot, response)
        if named := self._news(queue, response):
            with self._learn(queue, named):
                await queue.configure(limits=merged(await queue._known_limits(), named))

    def _heed_blocking(self, queue: BlockingQueue, slot: Slot, response: httpx.Response) -> None:
        super()._heed_blocking(queue, slot, response)
        settle_when_read(slot, response)
        if named := self._news(queue, response):
            with self._learn(queue, named):
                queue.configure(limits=merged(queue._known_limits(), named))

    def _news(self, queue: IntervalQueue | BlockingQueue, response: httpx.Response) -> dict[str, int]:
        """The limits that a response names, without those that are known or being adopted already."""
        if queue.name in self._learning:
            return {}
        known = self._known(queue)
        return {
            unit: most for unit, most in named_limits(response.headers).items() if known.get(unit) != most
        }

    @contextmanager
    def _learn(self, queue: IntervalQueue | BlockingQueue, named: dict[str, int]) -> Iterator[None]:
        """Record the adopted limits; after an error, the next response adopts them again."""
        self._learning.add(queue.name)
        try:
            with suppress(IntervalqError):
                yield
                self._learned[queue.name] = queue, self._known(queue) | named
        finally:
            self._learning.discard(queue.name)

    def _known(self, queue: IntervalQueue | BlockingQueue) -> dict[str, int]:
        return self._learned.get(queue.name, (queue, {}))[1]

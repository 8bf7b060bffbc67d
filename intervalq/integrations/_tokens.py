"""The tokens of a request: an upper bound before it is sent, and the real number once its answer was read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final, cast

from intervalq._queue.slot import Slot
from intervalq.errors import InvalidOption, QueueClosed
from intervalq.integrations._httpx import httpx

_ANSWER: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""The fields of a request that bound the length of the answer."""


def most_tokens(request: httpx.Request, answer: int = 4_096) -> int:
    """The most tokens that a request can take: the bytes of its body, and the longest answers.

    Args:
        request: its body is a JSON object. Without a body, it takes none. The bytes of a streamed body aren't
            known, and don't count.
        answer: the length of an answer if its request doesn't bound it.
    """
    try:
        body = request.content
        fields = json.loads(body) if body else {_ANSWER[0]: 0}
    except (httpx.RequestNotRead, ValueError):
        body, fields = b"", None
    fields = fields if isinstance(fields, dict) else {}
    longest = next((fields[name] for name in _ANSWER if isinstance(fields.get(name), int)), answer)
    count = fields["n"] if isinstance(fields.get("n"), int) else 1
    return len(body) + max(0, longest) * max(1, count)


def settle_when_read(slot: Slot, response: httpx.Response) -> None:
    """Settle the tokens that a JSON body names, now or when it has been read; not those of event streams."""
    if not response.headers.get("content-type", "").startswith("application/json"):
        return
    if response.is_stream_consumed:
        _settle(slot, response)
    else:
        response.stream = _Read(slot, response)


def _settle(slot: Slot, response: httpx.Response) -> None:
    try:
        used = response.json()["usage"]["total_tokens"]
    except (ValueError, LookupError, TypeError, httpx.DecodingError):
        return
    with suppress(InvalidOption, QueueClosed):  # not a number, or there is no estimate that it could correct
        slot.settle(tokens=used)


class _Read(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body's stream that keeps a copy until it has ended."""

    def __init__(self, slot: Slot, response: httpx.Response) -> None:
        self._slot, self._headers, self._stream = slot, response.headers, response.stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        async for part in cast("httpx.AsyncByteStream", self._stream):
            parts.append(part)
            yield part
        self._ended(parts)

    def __iter__(self) -> Iterator[bytes]:
        parts: list[bytes] = []
        for part in cast("httpx.SyncByteStream", self._stream):
            parts.append(part)
            yield part
        self._ended(parts)

    def _ended(self, parts: list[bytes]) -> None:
        with suppress(httpx.DecodingError):  # the reader of the body gets the error, too
            _settle(self._slot, httpx.Response(200, headers=self._headers, content=b"".join(parts)))

    async def aclose(self) -> None:
        await cast("httpx.AsyncByteStream", self._stream).aclose()

    def close(self) -> None:
        cast("httpx.SyncByteStream", self._stream).close()

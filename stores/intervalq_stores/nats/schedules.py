"""Schedules in NATS: a stream with one message a schedule, which is replaced if it is still the last one."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from intervalq.errors import StoreUnavailable
from intervalq.store import StoredSchedules, Swapped
from intervalq_stores.nats import _lists
from intervalq_stores.nats._names import decoded, encoded
from intervalq_stores.nats._queue.entry import micros
from intervalq_stores.nats._server import Refused, Server

if TYPE_CHECKING:
    from nats.aio.msg import Msg

STREAM: Final = "intervalq-schedules"
_SUBJECTS: Final = "intervalq.schedule."
_CONFIG: Final[dict[str, Any]] = {
    "name": STREAM,
    "description": "schedules of intervalq",
    "subjects": [f"{_SUBJECTS}*"],
    "storage": "file",
    "discard": "old",
    "max_msgs_per_subject": 1,
    "allow_direct": True,
}
_NEEDED: Final = ("subjects", "max_msgs_per_subject", "allow_direct")
_NOT_THE_LAST: Final = frozenset({10071, 10164})
_PAGE: Final = 250


class _Message(NamedTuple):
    """The last message of a schedule."""

    sequence: int
    """0: there is none."""
    text: str
    """Empty: it was removed."""


class NATSSchedules:
    """Compare-and-swap by the sequence of the message that has the known text.

    The server's clock is read before a change, in a request of its own: no request compares both.
    A clock that is stepped back between the two can only make a change early by the time between them.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ready = False
        self._preparing = anyio.Lock(fast_acquire=True)
        self._seen: dict[str, _Message] = {}

    async def read(self, names: Collection[str] | None, now: int | None) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        at = await self._clock(now)
        wanted = await self._names() if names is None else [*names]
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            found = await self._server.messages(STREAM, {"multi_last": [_subject(name) for name in page]})
            self._seen |= dict.fromkeys(page, _Message(0, "")) | dict(map(_read, found))
        return StoredSchedules(at, {name: self._seen[name].text for name in wanted if self._seen[name].text})

    async def swap(
        self, name: str, known: str | None, text: str | None, earliest: int, now: int | None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        at = await self._clock(now)
        seen = self._seen.get(name)
        if seen is None or seen.text != (known or ""):
            seen = await self._last(name)
        if seen.text != (known or "") or at < earliest:
            return Swapped(False, at, seen.text or None)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(seen.sequence)}
        try:
            stored = await self._server.publish(_subject(name), headers, (text or "").encode())
        except Refused as refused:
            if refused.code not in _NOT_THE_LAST:
                raise
            return Swapped(False, at, (await self._last(name)).text or None)
        except StoreUnavailable:
            self._ready = False  # the stream may be gone
            raise
        self._seen[name] = _Message(stored.sequence, text or "")
        if text is None:  # the empty message says so until it is removed, too
            await self._server.ask(
                f"STREAM.PURGE.{STREAM}", {"filter": _subject(name), "seq": stored.sequence + 1}
            )
            del self._seen[name]
        return Swapped(True, at, text)

    async def _last(self, name: str) -> _Message:
        """The last message of a schedule, as the stream's leader knows it."""
        message = await self._server.message(STREAM, {"last_by_subj": _subject(name)})
        self._seen[name] = _Message(0, "") if message is None else _read(message)[1]
        return self._seen[name]

    async def _clock(self, now: int | None) -> int:
        """The server's clock; the stream is created if it doesn't exist."""
        if self._ready:
            try:
                answer = await self._server.ask(f"STREAM.INFO.{STREAM}")
            except StoreUnavailable:
                self._ready = False
                raise
            return micros(answer["ts"]) if now is None else now
        async with self._preparing:
            made = await self._server.ensure(_CONFIG, _NEEDED, "schedules")
            self._ready = True
        return micros(made["ts"]) if now is None else now

    async def _names(self) -> list[str]:
        found = await _lists.subjects(self._server, STREAM, f"{_SUBJECTS}*")
        return [decoded(subject.removeprefix(_SUBJECTS)) for subject in found]


def _subject(name: str) -> str:
    return _SUBJECTS + encoded(name)


def _read(message: Msg) -> tuple[str, _Message]:
    headers = message.headers or {}
    name = decoded(headers["Nats-Subject"].removeprefix(_SUBJECTS))
    return name, _Message(int(headers["Nats-Sequence"]), message.data.decode())

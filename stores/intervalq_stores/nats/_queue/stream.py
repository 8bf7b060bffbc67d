"""The logs of queues in a stream, and the checkpoints beside them: written, read, and cleared away."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from os import urandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from intervalq.errors import CorruptState, StoreError, UnsupportedOperation, VersionMismatch
from intervalq.rules import BadRecord, NewerRecord, State
from intervalq.store import stopwatch
from intervalq_stores.nats import _lists
from intervalq_stores.nats._names import decoded
from intervalq_stores.nats._queue import entry as nats_queue_entry
from intervalq_stores.nats._queue.entry import STEP, Broken, Newer
from intervalq_stores.nats._queue.log import Gap
from intervalq_stores.nats._queue.step import Entry, Full, Plain, Position
from intervalq_stores.nats._server import Refused, Server, Stored

if TYPE_CHECKING:
    from nats.aio.msg import Msg

LOG: Final = "intervalq-log"
STATE: Final = "intervalq-state"
_SUBJECTS: Final = {LOG: "intervalq.log.", STATE: "intervalq.state."}

KEPT: Final = 8_192
"""How many entries of each queue the server keeps; the checkpoint must be newer than the oldest."""

_STREAMS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": LOG,
        "subjects": [f"{_SUBJECTS[LOG]}*"],
        "allow_msg_counter": True,
        "allow_direct": True,
        "storage": "file",
        "discard": "old",
        "max_msgs_per_subject": KEPT,
    },
    {
        "name": STATE,
        "subjects": [f"{_SUBJECTS[STATE]}*"],
        "allow_direct": True,
        "storage": "file",
        "discard": "old",
        "max_msgs_per_subject": 1,
    },
)
_NEEDED: Final = {LOG: ("allow_msg_counter", "allow_direct"), STATE: ("allow_direct",)}

_NO_MESSAGE: Final = 10037
_NOT_THE_LAST: Final = 10071

_LAYOUT: Final = 1

_REMEDY: Final = (
    "NATS 2.14 or newer is needed, and a stream that was made by it: remove the one that is there"
)

_TRIES: Final = 3
"""How often to try to write a checkpoint while others write theirs at the same moment."""


class Checkpoint(NamedTuple):
    """The record at one of the entries of a log, stored separately."""

    position: Position
    at: int
    """The sequence number of its message."""


class Appended(NamedTuple):
    """A stored entry."""

    sequence: int
    value: int
    sent: int
    received: int


class History:
    """The logs and checkpoints of all queues of one store, each by its name as a token of a subject."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url
        self._ready = False
        self._preparing = anyio.Lock(fast_acquire=True)

    async def prepare(self) -> None:
        """Create the two streams, unless this store has done so."""
        if self._ready:
            return
        async with self._preparing:
            if not self._ready:
                await self.streams()
                self._ready = True

    async def streams(self) -> list[dict[str, Any]]:
        """Create the two streams unless they exist, and return how they are stored."""
        made = [await self.server.ensure(config, _NEEDED[config["name"]], "pacing") for config in _STREAMS]
        return [stream["config"] for stream in made]

    def forget(self) -> None:
        """Check the streams again before the next use, because they may be gone."""
        self._ready = False

    async def append(self, token: str, step: Plain | Full, increment: int) -> Appended:
        """Store an entry, once.

        Raises:
            StoreTimeout: no answer; it may be stored.
            Gap: it was stored, and removed since.
        """
        if not self._ready:
            await self.prepare()
        headers = {
            "Nats-Incr": f"+{increment}",
            "Nats-Msg-Id": urandom(8).hex(),
            STEP: nats_queue_entry.written(step),
        }
        try:
            stored: Stored = await self.server.publish(_SUBJECTS[LOG] + token, headers)
        except Refused as refused:
            raise StoreError(self.url, f"stream {LOG!r} takes no entries ({refused}): {_REMEDY}") from refused
        value = stored.value
        if value is None:
            if not stored.duplicate:
                raise UnsupportedOperation(self.url, f"stream {LOG!r} doesn't count: {_REMEDY}")
            value = (await self.entry(token, stored.sequence)).value
        return Appended(stored.sequence, value, stored.sent, stored.received)

    async def entry(self, token: str, sequence: int) -> Entry:
        """One entry.

        Raises:
            Gap: it is gone.
        """
        found = await self.server.messages(LOG, {"seq": sequence})
        if found:
            return self._entry(token, found[0])
        asked = {"seq": sequence}  # from the leader, because a follower may not have it yet
        if (entry := await self._ask(token, asked)) is None:
            raise Gap
        return entry

    async def last(self, token: str) -> Entry | None:
        """The last entry of a queue, as the stream's leader knows it."""
        return await self._ask(token, {"last_by_subj": _SUBJECTS[LOG] + token})

    async def entries(self, token: str, after: int, last: int, count: int) -> list[Entry]:
        """The next entries of a queue, up to the stored one with sequence number `last`.

        Raises:
            Gap: that one is gone.
        """
        found: list[Entry] = []
        while count > len(found):
            asked = {
                "seq": after + 1,
                "next_by_subj": _SUBJECTS[LOG] + token,
                "batch": count - len(found),
            }
            more = [self._entry(token, message) for message in await self.server.messages(LOG, asked)]
            if more and more[-1].sequence >= last:
                found += [entry for entry in more if entry.sequence <= last]
                if not found or found[-1].sequence != last:  # newer entries have displaced it
                    raise Gap
                return found
            if not more:
                await self.entry(token, last)  # a lagging follower answered, or there is a gap
                if not found:
                    raise Gap
                await anyio.sleep(0.001)
            found += more
            after = found[-1].sequence
        return found

    async def tail(self, token: str, last: int) -> list[Entry]:
        """All remaining entries of a queue, up to `last`."""
        return await self.entries(token, 0, last, 2 * KEPT)

    async def oldest(self, after: int, count: int) -> list[tuple[str, Entry]]:
        """The next entries of any queues, with their names; unreadable entries are omitted."""
        asked = {"seq": after + 1, "next_by_subj": f"{_SUBJECTS[LOG]}*", "batch": count}
        found = []
        for message in await self.server.messages(LOG, asked):
            token = (message.headers or {}).get("Nats-Subject", "").removeprefix(_SUBJECTS[LOG])
            try:
                found.append((token, nats_queue_entry.entry(message)))
            except (Broken, Newer):
                continue
        return found

    async def checkpoint(self, token: str) -> Checkpoint | None:
        """The checkpoint of a queue."""
        found = await self.server.messages(STATE, {"last_by_subj": _SUBJECTS[STATE] + token})
        if not found:
            return None
        headers = found[0].headers or {}
        with_state = "the checkpoint"
        try:
            checkpoint = json.loads(found[0].data)
            if checkpoint["v"] > _LAYOUT:
                raise self._newer(token, f"{with_state} has layout {checkpoint['v']}")
            state = None if checkpoint["state"] is None else State.from_dict(checkpoint["state"])
            position = Position(state, int(checkpoint["value"]), int(checkpoint["sequence"]))
            return Checkpoint(position, int(headers["Nats-Sequence"]))
        except NewerRecord as newer:
            raise self._newer(token, newer) from newer
        except (ValueError, TypeError, KeyError, BadRecord, RecursionError) as wrong:
            raise self._corrupt(
                token, f"{with_state} can't be read: {type(wrong).__name__}", STATE
            ) from wrong

    async def save(self, token: str, position: Position, before: Checkpoint | None) -> None:
        """Replace the checkpoint, unless there is one of a later entry of the same log."""
        checkpoint = {
            "v": _LAYOUT,
            "state": None if position.state is None else position.state.to_dict(),
            "value": str(position.value),
            "sequence": position.sequence,
        }
        data = json.dumps(checkpoint, separators=(",", ":")).encode()
        for _ in range(_TRIES):
            if before is not None and await self._is_later(token, before.position, position):
                return
            last = 0 if before is None else before.at
            headers = {"Nats-Expected-Last-Subject-Sequence": str(last)}
            try:
                await self.server.publish(_SUBJECTS[STATE] + token, headers, data)
            except Refused as refused:
                if refused.code != _NOT_THE_LAST:
                    raise
                before = await self.checkpoint(token)
            else:
                return

    async def _is_later(self, token: str, kept: Position, position: Position) -> bool:
        if kept.sequence <= position.sequence:
            return False
        try:
            return (await self.entry(token, kept.sequence)).value == kept.value
        except (Gap, CorruptState):  # it isn't of this log, which was removed and created again
            return False

    async def clear(self, token: str, upto: int, before: Checkpoint | None) -> None:
        """Remove a checkpoint, and the log of a queue up to an entry."""
        if before is not None:
            await self._purge(STATE, token, before.at)
        await self._purge(LOG, token, upto)

    async def tokens(self) -> list[str]:
        """The queues that have a log."""
        await self.prepare()
        found = await _lists.subjects(self.server, LOG, f"{_SUBJECTS[LOG]}*")
        return [subject.removeprefix(_SUBJECTS[LOG]) for subject in found]

    async def clock(self) -> tuple[int, int, int]:
        """The time of the request and of its answer, and the reading of the server's clock in between."""
        await self.prepare()
        sent = stopwatch()
        answer = await self.server.ask(f"STREAM.INFO.{LOG}")
        return sent, stopwatch(), nats_queue_entry.micros(answer["ts"])

    @staticmethod
    def subject(token: str) -> str:
        """The subject of the entries of a queue."""
        return _SUBJECTS[LOG] + token

    async def _purge(self, stream: str, token: str, upto: int) -> None:
        await self.server.ask(
            f"STREAM.PURGE.{stream}", {"filter": _SUBJECTS[stream] + token, "seq": upto + 1}
        )

    async def _ask(self, token: str, asked: dict[str, Any]) -> Entry | None:
        try:
            answer = await self.server.ask(f"STREAM.MSG.GET.{LOG}", asked)
        except Refused as refused:
            if refused.code != _NO_MESSAGE:
                raise
            return None
        message = answer["message"]
        lines = base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)

        def read() -> Entry:
            return nats_queue_entry.read(
                message["seq"],
                nats_queue_entry.micros(message["time"]),
                headers.get("Nats-Incr", ""),
                base64.b64decode(message.get("data", "")),
                headers.get(STEP, ""),
            )

        return self._understood(token, read)

    def _entry(self, token: str, message: Msg) -> Entry:
        return self._understood(token, lambda: nats_queue_entry.entry(message))

    def _understood(self, token: str, read: Callable[[], Entry]) -> Entry:
        try:
            return read()
        except Newer as newer:
            raise self._newer(token, newer) from newer
        except Broken as broken:
            raise self._corrupt(token, f"a message of its log can't be understood: {broken}", LOG) from None

    def _corrupt(self, token: str, why: str, stream: str) -> CorruptState:
        return CorruptState(
            self.url,
            f"queue {decoded(token)!r}: {ascii(why)[1:-1]}. It was left as it is: to begin anew, "
            f"`nats stream purge {stream} --subject={_SUBJECTS[stream]}{token}`",
        )

    def _newer(self, token: str, why: object) -> VersionMismatch:
        return VersionMismatch(self.url, f"queue {decoded(token)!r}: {why}: upgrade intervalq here")

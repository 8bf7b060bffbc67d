"""`redis://` and its variants: ledgers in a Redis or Valkey, one atomic script per command (ledgers.lua)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from intervalq.errors import CorruptState
from intervalq.ledger.rules import (
    Answer,
    Beat,
    Cancel,
    Claim,
    Command,
    Count,
    Drop,
    Expire,
    Forget,
    Leave,
    Look,
    Record,
    Release,
    Seen,
    Start,
    Summary,
    Verdict,
)
from intervalq_stores.redis._client import Client
from intervalq_stores.redis._scripts import script

_NAME: Final = re.compile(rb"intervalq:\{([^{}]+)\}:ledger:meta")
_PARTS: Final = ("meta", "sessions", "open", "rows")


class RedisLedgerStore:
    """Ledgers in four keys each, all of one slot of a cluster. One connection, open while it is in use."""

    def __init__(self, url: str) -> None:
        self._server = Client(url, "a store in Redis or Valkey")
        self.url = self._server.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """See `LedgerStore.apply`. The whole command is one step, not only each row of it."""
        keys = [_key(ledger, part) for part in _PARTS]
        clock = "" if now is None else str(now)
        op, *arguments = _asked(command)
        reply, _ = await self._server.run(
            keys[0], script("ledgers.lua"), str(len(keys)), *keys, op, clock, *arguments
        )
        try:
            return _answer(command, reply)
        except UnicodeDecodeError:
            raise CorruptState(self.url, f"ledger {ledger!r} has a text that isn't UTF-8") from None
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise CorruptState(self.url, f"ledger {ledger!r} has an invalid row: {error}") from None

    async def names(self) -> list[str]:
        """See `LedgerStore.names`. Looks at all keys of the server, a thousand at a time."""
        matches = [_NAME.fullmatch(key) async for key in self._server.keys(_key("*", "meta"))]
        return sorted({match[1].decode() for match in matches if match})

    async def aclose(self) -> None:
        """See `LedgerStore.aclose`."""
        await self._server.close()


def _key(ledger: str, part: str) -> str:
    return f"intervalq:{{{ledger}}}:ledger:{part}"  # the text in braces determines the cluster's slot


def _asked(command: Command) -> list[str]:  # noqa: C901, PLR0911 - one case per command
    """A command for the script: its name, then its arguments."""
    match command:
        case Claim(session, expiry, keys, started, again):
            return ["claim", session, str(expiry), str(int(started)), str(int(again)), json.dumps(keys)]
        case Start(session, expiry, keys):
            return ["start", session, str(expiry), json.dumps(keys)]
        case Record(session, expiry, rows):
            flags = "".join("1" if row.failed else "0" for row in rows)
            keys_ = json.dumps([row.key for row in rows])
            return ["record", session, str(expiry), keys_, flags, *(row.value for row in rows)]
        case Release(session, keys):
            return ["release", session, json.dumps(keys)]
        case Beat(session, expiry):
            return ["beat", session, str(expiry)]
        case Leave(session):
            return ["leave", session]
        case Cancel(on):
            return ["cancel", str(int(on))]
        case Expire(at):
            return ["expire", "" if at is None else str(at)]
        case Forget(keys, shown):
            return ["forget", ",".join(shown), json.dumps(keys)]
        case Look(cursor, limit):
            return ["look", cursor, str(limit)]
        case Count():
            return ["count"]
        case Drop():
            return ["drop"]


def _answer(command: Command, reply: list[Any]) -> Answer:
    """The answer in the script's integers and texts, which the script documents."""
    now, found, cancelled, removed, verdicts, rows, cursor, summary = reply
    _whole(now, removed, *rows[2::5], *rows[4::5], *verdicts[1::4], *summary[:1], *summary[2:])
    return Answer(
        now,
        bool(found),
        bool(cancelled),
        _verdicts(command, verdicts),
        removed,
        tuple(
            Seen(_key_in(key), shown.decode(), attempt, value.decode(), at)
            for key, shown, attempt, value, at in _by(5, rows)
        ),
        cursor.decode(),
        _summary(cancelled, *summary) if summary else None,
    )


def _key_in(text: bytes) -> str:
    """The key of a row, which the script has written as JSON."""
    if not text.startswith(b'"'):
        raise ValueError("a key isn't a text")
    key: str = json.loads(text.decode())
    return key


def _whole(*numbers: object) -> None:
    """Raise a TypeError unless all of them are whole numbers."""
    if not {int}.issuperset(map(type, numbers)):
        raise TypeError("a number is missing")


def _verdicts(command: Command, parts: list[Any]) -> tuple[Verdict, ...]:
    """One verdict alone is that on all rows of the command."""
    if isinstance(command, Record):
        some = parts if len(parts) > 4 else parts * len(command.rows)
        return tuple(
            Verdict("known", attempt, end.value, end.failed)
            if kind == b"kept"  # the recorded value isn't sent back
            else Verdict(kind.decode(), attempt, value.decode(), bool(failed))
            for end, (kind, attempt, failed, value) in zip(command.rows, _by(4, some), strict=True)
        )
    found = tuple(
        Verdict(kind.decode(), attempt, value.decode(), bool(failed))
        for kind, attempt, failed, value in _by(4, parts)
    )
    return found * len(command.keys) if len(found) == 1 and isinstance(command, Claim | Start) else found


def _summary(cancelled: int, created: int, expires: int | bytes, *counts: int) -> Summary:
    return Summary(created, expires if isinstance(expires, int) else None, bool(cancelled), *counts)


def _by(size: int, parts: list[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(parts)] * size, strict=True)

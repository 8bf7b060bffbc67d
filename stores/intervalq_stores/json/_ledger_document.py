"""A ledger as a JSON document: one line per row, checked when it is read."""

from __future__ import annotations

import json
from typing import Any, Final, get_args

from intervalq.errors import CorruptState
from intervalq.ledger.rules import MemoryBook, Meta, Row, Stage
from intervalq_stores._files.json_records import corrupt, newer, parse, shown
from intervalq_stores._files.locked_file import MAX_BYTES

LAYOUT: Final = 1
"""The version of the document's layout."""

_STAGES: Final = get_args(Stage)


def read(content: bytes | None, name: str, url: str) -> MemoryBook:
    """The ledger in a document; None: there is none.

    Raises:
        CorruptState: intervalq didn't write it, or it is the ledger of another name.
        VersionMismatch: it was written by a newer version.
    """
    if content is None:
        return MemoryBook()
    if not content or len(content) > MAX_BYTES:
        raise _broken(name, f"it has {'no' if not content else 'too many'} bytes", url)
    try:
        top: Any = parse(content.decode())
    except ValueError as error:
        raise _broken(name, f"it is not JSON: {shown(error)}", url) from error
    version = top.get("intervalq_ledger") if isinstance(top, dict) else None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise _broken(name, "it has no 'intervalq_ledger' with the version of its layout", url)
    if version > LAYOUT:
        raise newer(version, LAYOUT, url)
    if top.get("name") != name:
        # On a case-insensitive disk, two ledgers would share one file.
        raise _broken(name, f"it is that of ledger {ascii(top.get('name'))[:100]}", url)
    return _book(top, name, url)


def written(book: MemoryBook, name: str) -> bytes:
    """The document of an existing ledger."""
    meta = book.meta
    assert meta is not None
    lines = [
        f' "intervalq_ledger": {LAYOUT}',
        f' "name": {json.dumps(name)}',
        f' "created": {meta.created}',
        f' "expires": {json.dumps(meta.expires)}',
        f' "cancelled": {json.dumps(meta.cancelled)}',
        f' "sessions": {json.dumps(book.sessions)}',
    ]
    rows = [f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in book.rows.items()]
    body = "{\n" + ",\n".join(rows) + "\n }" if rows else "{}"
    return ("{\n" + ",\n".join([*lines, f' "rows": {body}']) + "\n}\n").encode()


def _book(top: dict[str, Any], name: str, url: str) -> MemoryBook:
    created, expires, cancelled = top.get("created"), top.get("expires"), top.get("cancelled")
    sessions, rows = top.get("sessions"), top.get("rows")
    if created is None or not all(at is None or _whole(at) for at in (created, expires)):
        raise _broken(name, "'created' or 'expires' is broken", url)
    if not isinstance(cancelled, bool):
        raise _broken(name, "'cancelled' is broken", url)
    if not isinstance(sessions, dict) or not all(map(_whole, sessions.values())):
        raise _broken(name, "'sessions' is broken", url)
    if not isinstance(rows, dict) or not all(map(_is_row, rows.values())):
        raise _broken(name, "'rows' is broken", url)
    return MemoryBook(
        Meta(created, expires, cancelled), sessions, {key: Row._make(row) for key, row in rows.items()}
    )


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != len(Row._fields):
        return False
    stage, session, attempt, value, at = row
    texts = isinstance(session, str) and isinstance(value, str)
    return stage in _STAGES and texts and _whole(attempt) and attempt > 0 and _whole(at)


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _broken(name: str, why: str, url: str) -> CorruptState:
    return corrupt(f"the document of ledger {name!a} is broken: {why}", url)

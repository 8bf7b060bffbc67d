"""The content of the state file: all records in one JSON object, checked when it is read."""

from __future__ import annotations

import json
from typing import Any, Final

from intervalq.errors import CorruptState
from intervalq.rules import BadRecord, NewerRecord, State, lapses
from intervalq_stores._files.json_records import (
    QUEUE,
    bad_name,
    corrupt,
    newer,
    parse,
    renewed,
    shown,
    state_of,
)
from intervalq_stores._files.locked_file import MAX_BYTES

LAYOUT: Final = 1
"""The version of the file's layout; the records have one of their own."""


class Document:
    """The content of the file. Unknown fields, here and in records, are kept as they are."""

    def __init__(self, content: bytes | None, url: str) -> None:
        """Read the content; None: there is none yet.

        Raises:
            CorruptState: intervalq didn't write it.
            VersionMismatch: it was written by a newer version.
        """
        self._url = url
        self._top: dict[str, Any] = {"intervalq": LAYOUT} if content is None else self._parse(content)
        self._queues: dict[str, Any] = self._top.setdefault("queues", {})

    def names(self) -> list[str]:
        """List the queues that have a record, sorted."""
        return sorted(self._queues)

    def get(self, queue: str) -> State | None:
        """Look up the record of a queue; None: it has none.

        Raises:
            CorruptState: it is broken; other records can still be used.
            VersionMismatch: it was written by a newer version.
        """
        return state_of(self._queues[queue], queue, self._url) if queue in self._queues else None

    def put(self, queue: str, state: State | None) -> None:
        """Change the record of a queue; None removes it."""
        if state is None:
            self._queues.pop(queue, None)
        else:
            self._queues[queue] = renewed(self._queues.get(queue, {}), state)

    def schedules(self) -> dict[str, str]:
        """The texts of all schedules.

        Raises:
            CorruptState: they are broken; the queues can still be used.
        """
        found = self._top.get("schedules", {})
        if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
            raise self._corrupt("'schedules' is not an object of texts")
        return found

    def put_schedule(self, name: str, text: str | None) -> None:
        """Change the text of a schedule; None removes it."""
        schedules = {**self.schedules(), name: text}
        self._top["schedules"] = {name: text for name, text in schedules.items() if text is not None}
        if not self._top["schedules"]:
            del self._top["schedules"]

    def forget_lapsed(self, now: int) -> None:
        """Remove ephemeral records that may be forgotten."""
        for queue, record in list(self._queues.items()):
            if isinstance(record, dict) and record.get("ephemeral") is True:
                try:
                    state = State.from_dict(record)
                except (BadRecord, NewerRecord):
                    continue  # users of that queue will get the error
                if lapses(state) <= now:
                    del self._queues[queue]

    def to_bytes(self) -> bytes:
        """The content to write: one line per queue is fast, readable, and easy to compare."""
        try:
            lines = [
                f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
                for name, value in self._top.items()
                if name != "queues"
            ]
            queues = [
                f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}"
                for name, value in self._queues.items()
            ]
        except (RecursionError, ValueError) as error:
            raise self._corrupt(f"a field in it can't be written back: {error}") from error
        body = "{\n" + ",\n".join(queues) + "\n }" if queues else "{}"
        lines.append(f' "queues": {body}')
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    def _parse(self, content: bytes) -> dict[str, Any]:
        if not content:
            raise self._corrupt("it is empty")
        if content.startswith(b"SQLite format 3\0"):
            raise CorruptState(
                self._url, "it is a SQLite database: write sqlite:// before its path, or give another one"
            )
        if len(content) > MAX_BYTES:
            raise self._corrupt(f"it has more than {MAX_BYTES} bytes")
        try:
            top: Any = parse(content.decode())
        except ValueError as error:
            raise self._corrupt(f"it is not JSON: {shown(error)}") from error
        if not isinstance(top, dict):
            raise self._corrupt("it is not a JSON object")
        version = top.get("intervalq")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise self._corrupt("it has no 'intervalq' with the version of its layout")
        if version > LAYOUT:
            raise newer(version, LAYOUT, self._url)
        self._check_queues(top.get("queues"))
        return top

    def _check_queues(self, queues: object) -> None:
        if not isinstance(queues, dict):
            raise self._corrupt("it has no 'queues' with the records")
        for name in queues:
            if not QUEUE.fullmatch(name):
                raise bad_name(name, self._url)

    def _corrupt(self, what: str) -> CorruptState:
        return corrupt(what, self._url)

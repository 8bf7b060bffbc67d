"""What notifications of PostgreSQL tell a session: tasks that are handed to it, and cancelled claims."""

from __future__ import annotations

import json
from collections.abc import Sequence

from intervalq.tasks.rules import Delete, Range, Row, Worked, sound
from intervalq_stores.postgres._task_statements import range_of


def handed(notices: Sequence[str]) -> Worked | None:
    """The tasks that notifications hand to a session, and those of its own that are cancelled; None: none.

    Everybody who can connect to the database can send notifications: malformed ones are ignored.
    """
    claimed: list[Row] = []
    ranges: list[tuple[Range, tuple[tuple[int, str], ...]]] = []
    cancelled: list[Delete] = []
    for whom, _, text in (notice.partition(" ") for notice in notices):
        try:
            lines = json.loads(text) if text and whom != "*" else ()
            rows = [sound(Row(*line[1:])) for line in lines if line[0] == "t"]
            some = [range_of(line) for line in lines if line[0] not in {"t", "x"}]
            gone = [Delete(str(line[1]), int(line[2])) for line in lines if line[0] == "x"]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
        claimed += rows
        ranges += some
        cancelled += gone
    if not (claimed or ranges or cancelled):
        return None
    return Worked(claimed=tuple(claimed), ranges=tuple(ranges), cancelled=tuple(cancelled))

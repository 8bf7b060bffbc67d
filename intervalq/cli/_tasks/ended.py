"""Outcomes of tasks in forms for people and for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from intervalq._show import cell, escaped, seconds
from intervalq._watch.task import history, moment, value_of
from intervalq.cli._tasks.show import WIDEST, table_of
from intervalq.tasks import Outcome, UnreadableValue

if TYPE_CHECKING:
    from rich.table import Table


def outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """An outcome for JSON output."""
    return {
        "id": outcome.id,
        "queue": outcome.queue,
        "key": outcome.key,
        "state": outcome.state,
        "value": value_of(outcome),
        "result": _result_of(outcome),
        "attempts": outcome.attempts,
        "errors": [error._asdict() for error in outcome.errors],
        "created": outcome.created,
        "started": outcome.started,
        "ended": outcome.ended,
        "until": outcome.until,
        "host": outcome.host,
        "pid": outcome.pid,
    }


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """Outcomes, one per line: of failed tasks the last error, of others the result."""
    made = table_of("id", "queue", "state", "attempts", "ended", "result or error")
    now = time.time()
    for outcome in outcomes:
        result = _result_of(outcome)
        said = (
            outcome.errors[-1].error if outcome.state == "failed" and outcome.errors else json.dumps(result)
        )
        made.add_row(
            cell(outcome.id),
            cell(outcome.queue),
            outcome.state,
            str(outcome.attempts),
            f"{seconds(max(0.0, now - outcome.ended))} ago",
            cell("" if said == "null" else said, WIDEST),
        )
    return made


def outcome_facts(outcome: Outcome) -> list[tuple[str, str]]:
    """One outcome as names and values."""
    rows = [
        ("task", escaped(outcome.id)),
        ("queue", escaped(outcome.queue)),
        ("state", outcome.state),
        ("attempts", str(outcome.attempts)),
        ("created", moment(outcome.created)),
        ("ended", moment(outcome.ended)),
        ("kept until", moment(outcome.until)),
    ]
    if outcome.started is not None:
        rows.insert(5, ("started", moment(outcome.started)))
    if outcome.key is not None:
        rows.insert(2, ("key", escaped(outcome.key)))
    if outcome.host is not None:
        rows.append(("by", f"{escaped(outcome.host)}:{outcome.pid}"))
    rows += history(outcome.errors)
    for what, value in (("result", _result_of(outcome)), ("value", value_of(outcome))):
        lines = json.dumps(value, indent=2).split("\n")
        rows += [("" if index else what, escaped(line)) for index, line in enumerate(lines)]
    return rows


def _result_of(outcome: Outcome) -> Any:  # noqa: ANN401 - any JSON value
    """The result of a task; the stored text if a codec wrote it or it is damaged."""
    try:
        return outcome.result
    except UnreadableValue:
        return outcome._row.result.strip('"')

"""Finds contradictions in the limits of queues. Pure, except for reading the records."""

from __future__ import annotations

from typing import Final

from intervalq._keys.names import shown
from intervalq._spec import parse
from intervalq._spec.limits import text
from intervalq._spec.record import BLOCKS, CELLS
from intervalq.rules import STARTS, Inspect, Settings
from intervalq.store import Store

_MAX_RECORDS: Final = 1_000
"""The maximum number of records to read."""

_LOCAL: Final = ("memory:", "sqlite:", "file:", "json:")

Finding = tuple[str, str]
"""`ok`, `warning` or `error`, and a sentence."""


async def examine_limits(store: Store) -> list[Finding]:
    """Problems with the limits of all queues of a store."""
    found = list[Finding]()
    is_remote = not store.url.startswith(_LOCAL)
    for name in (await store.names())[:_MAX_RECORDS]:
        state = (await store.apply(name, Inspect())).state
        if state is not None:
            found += about_limits(shown(name), state.settings, is_remote=is_remote)
    return found


def about_limits(name: str, settings: Settings, *, is_remote: bool) -> list[Finding]:
    """Problems with the limits of one queue."""
    found = list[str]()
    cells = BLOCKS * CELLS
    fastest = settings.interval if settings.auto is None else settings.auto.fastest
    for limit in settings.limits:
        named = text(limit)
        if limit.unit == STARTS and settings.has_pace:
            starts = settings.burst + (limit.window + limit.jitter) // fastest
            if limit.most * cells > starts * (cells + 1):  # otherwise it may bind because of its cells
                found.append(
                    f"the limit {named} never delays a job: one start in {parse.text(fastest)} is always "
                    "fewer; leave it out, or configure a faster pace"
                )
            if settings.burst > limit.most:
                found.append(
                    f"its burst of {settings.burst} is larger than the limit {named}, so it can never be used"
                )
    if is_remote and settings.limits and not any(limit.jitter for limit in settings.limits):
        found.append(
            "none of its limits has a jitter: a server may see more calls in a window than began in one, if"
            " some travel longer than others; see `Limit(..., jitter=)`"
        )
    return [("warning", f"queue {name!r}: {what}") for what in found]

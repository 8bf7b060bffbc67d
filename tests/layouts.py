"""A record of layout 1, as older stores wrote it, and what every store makes of it now."""

from __future__ import annotations

from typing import Any, Final

from intervalq import rules
from intervalq.rules import Advance, HighWaterMark, Inspect, Settings, Slot, State
from intervalq.store import Store

NOW: Final = 1_700_000_000_000_000

LAYOUT_1: Final[dict[str, Any]] = {
    "version": 1,
    "generation": "g",
    "interval": 1_000_000,
    "burst": 1,
    "max_running": 3,
    "tolerance": 0,
    "ephemeral": False,
    "ticket": 7,
    "due": NOW + 1_000_000,
    "current": 6,
    "at": NOW,
    "void": 2,
    "held": 0,
    "held_until": 0,
    "seen": NOW,
    "held_since": None,
    "running": {"5": NOW + 9_000_000, "6": NOW + 300_000},
}
"""It has as many leases as layout 2 has new fields, less one; one of the leases lapses in the step."""


async def is_raised(store: Store, queue: str) -> dict[str, Any]:
    """Do one step on that record in a store, compare it with the rules, and return the record that results.

    The step grants a slot late, so it needs the fields that layout 1 doesn't have.
    """
    before = State.from_dict(LAYOUT_1)
    assert await store.apply(queue, Inspect(), NOW) == rules.apply(before, Inspect(), NOW)[1]
    refused = Advance(settings=Settings(5), attach=True)
    assert await store.apply(queue, refused, NOW) == rules.apply(before, refused, NOW)[1]
    now = NOW + 1_400_000
    command = Advance(
        generation="g",
        slots=(Slot(7, NOW + 1_000_000, 2),),
        lease=1_000_000,
        notice=1_000,
        until=now,
        high_water_mark=HighWaterMark(7, NOW + 1_000_000),
        error=5,
    )
    after, expected = rules.apply(before, command, now)
    assert await store.apply(queue, command, now) == expected
    assert expected.at_once
    assert after is not None
    assert after.late_total > 0
    kept = after.to_dict()
    assert kept["version"] == rules.LAYOUT
    return kept

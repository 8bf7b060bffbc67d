"""The clocks of the hosts that run a store's schedules, as these noted them."""

from __future__ import annotations

from typing import Final

from intervalq._show import seconds
from intervalq.errors import IntervalqError
from intervalq.schedules._holder import Holder
from intervalq.schedules.rules import BadRecord, NewerRecord, Record
from intervalq.store import Scheduling, Store

FAR: Final = 5.0
"""Warn if two clocks differ by this many seconds: times of results and logs can't be compared then."""


async def examine_clocks(store: Store) -> list[tuple[str, str]]:
    """Which hosts' clocks disagreed with the store's when they last fired an occurrence."""
    if not isinstance(store, Scheduling):
        return []
    try:
        texts = (await store.read_schedules()).texts
    except IntervalqError as error:
        return [("warning", f"its schedules can't be read: {error}")]
    last: dict[str, tuple[int, float]] = {}
    for text in texts.values():
        try:
            record = Record.from_text(text)
        except (BadRecord, NewerRecord):  # `intervalq schedule list` says so
            continue
        found = Holder.of(record.holder)
        if found is not None and record.fired is not None:
            last[found.host] = max(last.get(found.host, (0, 0.0)), (record.fired, found.ahead))
    far = {host: ahead for host, (_, ahead) in sorted(last.items()) if abs(ahead) > FAR}
    findings = list[tuple[str, str]]()
    for host, ahead in far.items():
        apart = f"{seconds(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} its own"
        what = f"the clock of {host} was {apart} when that last fired a schedule"
        findings.append(("warning", f"{what}: synchronize it, because cron starts `intervalq once` by it"))
    if last and not far:
        findings.append(
            ("ok", f"the clocks of the hosts that fired its schedules agree with its own ({len(last)})")
        )
    return findings

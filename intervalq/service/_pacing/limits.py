"""The headers `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers) of a queue."""

from __future__ import annotations

from typing import Final

from intervalq import IntervalQueue
from intervalq._spec import limits
from intervalq._spec.standing import standings
from intervalq.rules import STARTS

_SECOND: Final = 1_000_000


def rate_limits(queue: IntervalQueue) -> dict[str, str]:
    """The headers, from what the handle knows of its queue without asking; none if it knows nothing."""
    shard = queue._shard_here
    state = None if shard is None else shard.connection.state
    if state is None:
        return {}
    clock, settings = state.clock(state.last_now), state.settings
    policies, left = [], []
    if settings.has_pace:
        window = _seconds(settings.interval) or 1
        wait = max(0, state.due + settings.interval - state.credit - clock)
        policies.append(f'"pace";q={window * _SECOND // settings.interval};w={window}')
        left.append(f'"pace";r={0 if wait or state.held_since is not None else 1};t={_seconds(wait)}')
    for each in standings(state, clock):
        limit, name = each.limit, limits.text(each.limit)
        unit = "" if limit.unit == STARTS else f';qu="{limit.unit}"'
        policies.append(f'"{name}";q={limit.most};w={_seconds(limit.window)}{unit}')
        left.append(f'"{name}";r={max(0, limit.most - each.taken)};t={_seconds(max(0, each.free - clock))}')
    return {"ratelimit-policy": ", ".join(policies), "ratelimit": ", ".join(left)}


def _seconds(micros: int) -> int:
    return -(-micros // _SECOND)

"""Settings that disagree with those of a record: what a handle may do, and how messages describe settings."""

from __future__ import annotations

from typing import Literal, TypeAlias

from intervalq._spec import limits, parse
from intervalq._spec.record import Settings

OnMismatch: TypeAlias = Literal["raise", "adopt", "update"]
"""What to do if a record has other settings: refuse to work, use those, or change them for everybody."""


def describe(settings: Settings) -> str:
    """A description of settings, for messages."""
    has_pace = settings.interval > 1 or not settings.limits
    parts = [f"interval={parse.text(settings.interval)}" if has_pace else "no interval"]
    if (auto := settings.auto) is not None:
        parts = [f"rate=auto, an interval from {parse.text(auto.fastest)} to {parse.text(auto.slowest)}"]
    if settings.burst != 1 and has_pace:
        parts.append(f"burst={settings.burst}")
    if settings.max_running:
        parts.append(f"max_running={settings.max_running}")
    if settings.tolerance:
        parts.append(f"tolerance={parse.text(settings.tolerance)}")
    own, common = settings.limits[: settings.own], settings.limits[settings.own :]
    for what, some in (("limits", common), ("limits of each key", own)):
        if some:
            parts.append(f"{what}=[{', '.join(repr(limits.text(limit)) for limit in some)}]")
    return ", ".join(parts)

"""Settings that disagree with those of a record: what a handle may do, and what messages say of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from intervalq._spec import limits, parse
from intervalq._spec.commands import Advance, Command
from intervalq._spec.keys.sharing import has_own_pace
from intervalq._spec.record import Settings, State

OnMismatch: TypeAlias = Literal["raise", "adopt", "update"]
"""What to do if a record has other settings: refuse to work, use those, or change them for everybody."""


def disagrees(command: Command, state: State, *, with_common: bool) -> bool:
    """Whether the sender must hear of the record's settings first: see `Answer.refused`.

    `with_common`: whether the step is on the common record, too, as steps of keys under one rate must be.
    """
    theirs, settings = command.settings, state.settings
    if isinstance(command, Advance) and not with_common and has_own_pace(state) is not None:
        return True
    if theirs is None:
        return False
    if isinstance(command, Advance) and theirs.limits != settings.limits:
        return True
    return command.attach and not theirs.agree(settings)


def differences(ours: Settings, theirs: Settings) -> tuple[str, str]:
    """What differs between two settings, as text for messages: one text for each of them."""
    one, other = _parts(ours), _parts(theirs)
    names = [name for name in one if name in other]
    names = [name for name in names if one[name] != other[name]] or names
    return ", ".join([one[name] for name in names]), ", ".join([other[name] for name in names])


def _parts(settings: Settings) -> dict[str, str]:
    """The text of each setting. Without an interval, others follow from the limits."""
    parts = {"pace": "no interval"}
    if settings.has_pace:
        given = settings.tolerance  # 0: a tenth of the interval, times the burst
        tolerance = f"tolerance={parse.text(given)}" if given else "the default tolerance"
        parts = {
            "pace": f"interval={parse.text(settings.interval)}",
            "burst": f"burst={settings.burst}",
            "tolerance": tolerance,
        }
    if (auto := settings.auto) is not None:
        parts["pace"] = (
            f"rate=auto, an interval from {parse.text(auto.fastest)} to {parse.text(auto.slowest)}"
        )
    most = settings.max_running
    parts["max_running"] = f"max_running={most}" if most else "no max_running"
    own, common = settings.limits[: settings.own], settings.limits[settings.own :]
    for what, some in (("limits", common), ("each", own)):
        listed = sorted([limits.text(limit) for limit in some])
        nothing = "no limits in each=" if what == "each" else "no limits"
        parts[what] = f"{what}={listed}" if some else nothing
    return parts


def command_for(queue: str, ours: Settings, theirs: Settings) -> str:
    """The command that gives a queue our settings, as far as it can be written."""
    parts = ["intervalq", "configure", queue]
    if ours.has_pace and ours.interval != theirs.interval and ours.auto is None:
        parts += ["--interval", parse.text(ours.interval)]
    if ours.has_pace and ours.burst != theirs.burst:
        parts += ["--burst", str(ours.burst)]
    if ours.max_running != theirs.max_running:
        parts += ["--max-running", str(ours.max_running)]
    if set(ours.limits) != set(theirs.limits):
        for limit in ours.limits:
            parts += ["--limit", limits.text(limit)]
        parts += [] if ours.limits else ["--no-limits"]
    is_whole = ours.auto == theirs.auto and not ours.own and not any(limit.jitter for limit in ours.limits)
    import shlex  # noqa: PLC0415 - a program begins sooner without it

    return shlex.join(parts if is_whole and len(parts) > 3 else parts[:2])

"""The option `each`: what it may be, and what can't be combined with it."""

from __future__ import annotations

from typing import Final

from intervalq._spec import parse
from intervalq._timing import rates
from intervalq.errors import InvalidOption, short
from intervalq.rules import Settings

SHARED: Final = "shared"
"""The text for keys that have no pace of their own."""

NO_PACE: Final = 0
"""The interval that stands for `SHARED`."""

MAX_WEIGHT: Final = 1_000
"""The largest weight: a larger one must be a mistake."""


def each_of(each: float | str | None, interval: int | None, *, is_plain: bool) -> int | None:
    """The interval of each key, in microseconds; `NO_PACE`: the common one; None: no common pace.

    Args:
        each: the option.
        interval: the common one.
        is_plain: whether there are neither burst, max_running nor an automatic rate.

    Raises:
        InvalidOption: it isn't a rate, is faster than the common one, or contradicts another option.
    """
    if each is None:
        return None
    what = f"each={short(each)}"
    if interval is None:
        raise InvalidOption(f"{what} needs interval or rate: the common pace of all keys")
    if not is_plain:
        raise InvalidOption(
            f"{what} can't be combined with burst, max_running or rate='auto': keys share only the pace and "
            "limits; leave these out, or use keys without each=, which are queues of their own"
        )
    if each == SHARED:
        return NO_PACE
    own = rates.rate(each)
    if own < interval:
        raise InvalidOption(
            f"{what} is faster than the common pace of one start in {parse.text(interval)}, which holds for "
            f"each key anyway: use a slower rate, or each={SHARED!r}"
        )
    return own


def pace_of(common: Settings, each: int) -> Settings:
    """The settings of a key under the common ones.

    The rules add what follows from the common record: see `keyed.apply_keyed`. The limits are the
    common ones: see `intervalq._keys.limits`.
    """
    return Settings(each or common.interval, tolerance=common.tolerance, ephemeral=True, limits=common.limits)


def needs_key(name: str) -> InvalidOption:
    """The error for a job of the common queue itself."""
    return InvalidOption(
        f"queue {name!r} has keys under one rate (each=), so each of its jobs needs a key: use "
        f"queue['tenant-42'] instead of queue"
    )


def not_of_common(name: str) -> InvalidOption:
    """The error for settings that keys can't share."""
    return InvalidOption(
        f"queue {name!r} has keys under one rate (each=), which share only the pace and limits: configure() "
        "takes interval or rate, and limits"
    )


def not_of_key(name: str, common: str) -> InvalidOption:
    """The error for settings that a key doesn't have."""
    return InvalidOption(
        f"{name!r} is a key under the rate of {common!r}: configure() takes interval or rate, and only if "
        f"the key has a pace of its own; the common pace and limits are those of {common!r}"
    )

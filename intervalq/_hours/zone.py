"""Time zones by their IANA names, and instants in them."""

from __future__ import annotations

from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from intervalq.errors import InvalidOption, short

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def zone_of(name: object) -> tzinfo:
    """The time zone of this name.

    Raises:
        InvalidOption: there is none, or this machine has no data about it.
    """
    if isinstance(name, str) and (found := _zone(name)) is not None:
        return found
    raise InvalidOption(
        f"timezone={short(name)} is not known here: use a name such as Europe/Berlin, America/New_York or "
        "UTC; where the system has no time zones (Windows, small containers), pip install tzdata"
    )


@lru_cache(64)
def _zone(name: str) -> tzinfo | None:
    if name == "UTC":
        return UTC
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo(name)
    return None


def local(instant: int, zone: tzinfo) -> datetime:
    """An instant as a time in a zone."""
    return (_EPOCH + instant * _MICROSECOND).astimezone(zone)


def instant_of(time: datetime) -> int:
    """The instant of a time that has a zone."""
    return (time - _EPOCH) // _MICROSECOND


def shown(time: datetime, *beside: datetime) -> str:
    """A time as people read it, with its offset; with the fraction of its second if one beside it has any."""
    micros = [each.microsecond for each in (time, *beside)]
    exact = "milliseconds" if any(micros) else "seconds"
    if any(each % 1_000 for each in micros):
        exact = "microseconds"
    return time.isoformat(sep=" ", timespec=exact)


def checked_instant(value: object, zone: tzinfo, what: str) -> int | None:
    """The instant of an option; a datetime without a zone is in the schedule's.

    Raises:
        InvalidOption: it is neither a datetime nor None, or so near to the first or the last year that it has
            no time in other zones.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidOption(f"{what}={short(value)} must be a datetime, such as datetime(2027, 1, 1)")
    if not MINYEAR < value.year < MAXYEAR:
        raise InvalidOption(f"{what}={short(value)} must lie in the years {MINYEAR + 1} to {MAXYEAR - 1}")
    return instant_of(value if value.tzinfo is not None else value.replace(tzinfo=zone))

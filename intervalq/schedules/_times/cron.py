"""Cron expressions: checked here, and evaluated by cronsim, which follows Debian's cron."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Final

from intervalq._hours.zone import instant_of, local
from intervalq.errors import InvalidOption, MissingExtra, short

if TYPE_CHECKING:
    from cronsim import CronSim

_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = "five fields: minute, hour, day of the month, month, day of the week"
_SHOWN: Final = 10


def checked_cron(expression: object, zone: tzinfo) -> str:
    """Check a cron expression; returns its five fields with one space between them.

    Raises:
        InvalidOption: it is not one, or asks for what schedules don't do.
        MissingExtra: cronsim isn't installed.
    """
    if not isinstance(expression, str):
        raise InvalidOption(f"{short(expression)} is not a cron expression: write text with {_FIELDS}")
    text = " ".join(expression.split())
    if text.lower() == "@reboot":
        raise InvalidOption(
            "@reboot has no meaning where many processes share a schedule: call the function when your "
            "program starts"
        )
    if text.startswith("@"):
        if text.lower() not in _NAMED:
            raise InvalidOption(f"{short(text)} is not known: use {', '.join(_NAMED)}, or {_FIELDS}")
        text = _NAMED[text.lower()]
    parts = text.split(" ")
    if len(parts) == 6:
        raise InvalidOption(
            f"{short(text)} has six fields, and schedules have {_FIELDS}.{_without(parts, zone)}"
        )
    if len(parts) != 5:
        raise InvalidOption(f"{short(text)} has {len(parts) if text else 0} fields: write {_FIELDS}")
    parser, wrong = _parser()
    try:
        parser(text, datetime(2000, 1, 1, tzinfo=zone))
    except wrong as error:
        raise InvalidOption(f"{short(text)} is not a cron expression ({error}): write {_FIELDS}") from None
    return text


def next_fires(expression: str, instant: int, zone: tzinfo) -> int | None:
    """The first instant of an expression after this one; None: there is none in the next 50 years.

    If the minute and the hour are not `*`, an hour that is skipped for daylight saving fires once at its end,
    and one that comes twice fires once. With `*`, the expression counts the time that passes.
    """
    times = _simulated(expression, local(instant, zone))
    for time in times:
        if (found := instant_of(time)) > instant:  # in an hour that comes twice, its first one is earlier
            return found
    return None


def _without(parts: list[str], zone: tzinfo) -> str:
    """Advice about six fields: they may be seconds and a usual expression, whose next times are shown."""
    text = " ".join(parts[1:])
    _, wrong = _parser()
    try:
        times = _simulated(text, datetime.now(UTC).astimezone(zone))
        shown = ", ".join(f"{time:%Y-%m-%d %H:%M %Z}" for time, _ in zip(times, range(_SHOWN), strict=False))
    except wrong:
        return " For seconds use every('10s')"
    return f" For seconds use every('10s'); without the first field it is {text!r}, at {shown} ..."


def _simulated(expression: str, time: datetime) -> CronSim:
    return _parser()[0](expression, time)


def _parser() -> tuple[type[CronSim], type[Exception]]:
    """The parser, and the error that it raises.

    Raises:
        MissingExtra: it isn't installed.
    """
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - needs the extra
    except ImportError as missing:
        raise MissingExtra("a cron expression", "schedules") from missing
    return CronSim, CronSimError

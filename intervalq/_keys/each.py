"""The option `each`: what it may be, and what can't be combined with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from intervalq._keys.names import shown
from intervalq._spec import parse
from intervalq._spec.keys.sharing import has_own_pace
from intervalq._spec.limits import Limit as PublicLimit
from intervalq._spec.limits import is_of_units, rules_of, text
from intervalq._timing import rates
from intervalq.errors import ConfigMismatch, InvalidInterval, InvalidOption, short
from intervalq.rules import Limit, Settings, State

SHARED: Final = "shared"
"""The text for keys that have no pace of their own."""

OF_ALL: Final = 0
"""The interval that stands for `SHARED`."""


_FORMS: Final = (
    f"must be a rate, {SHARED!r}, or a list that begins with one of these or with a limit of units: "
    "['5/s', '5_000 tokens/min']"
)


class Each(NamedTuple):
    """What each key has for itself."""

    interval: int | None
    """Its interval in microseconds; `OF_ALL`: the common one; None: no common pace."""
    limits: tuple[Limit, ...] = ()


def each_of(
    each: float | str | Iterable[float | str | PublicLimit] | None, interval: int | None, *, is_plain: bool
) -> Each:
    """What each key has for itself.

    Args:
        each: the option.
        interval: the common one.
        is_plain: whether there are neither burst, max_running nor an automatic rate.

    Raises:
        InvalidOption: it isn't a rate, is faster than the common one, has a limit that no key can have, could
            mean two things, or contradicts another option.
    """
    if each is None:
        return Each(None)
    what = f"each={short(each)}"
    if interval is None:
        raise InvalidOption(
            f"{what} needs rate= or interval=, the common pace of all keys: if only limits are common, give "
            "the highest rate at which all keys together may start. If nothing is common, leave out each=: "
            "then rate, interval and limits hold for each key by itself"
        )
    if not is_plain:
        raise InvalidOption(
            f"{what} can't be combined with burst, max_running or rate='auto': keys share only the pace and "
            "limits; leave these out, or use keys without each=, which are queues of their own"
        )
    pace: float | str = SHARED
    rest: list[float | str | PublicLimit] = []
    if isinstance(each, bytes | bytearray | AbstractSet | Mapping):
        raise InvalidOption(f"{what} {_FORMS}")
    if isinstance(each, str) or not isinstance(each, Iterable):
        pace = each
    else:
        rest = [*each]
        if not rest:
            raise InvalidOption(f"{what} {_FORMS}")
        if rest and not is_of_units(rest[0]):
            pace = rest.pop(0)  # type: ignore[assignment] # `rates.rate` checks it
    own = Each(_pace(pace, interval), limits_of(rest, "each="))
    if rest and _may_be_limit(pace):
        raise InvalidOption(
            f"{what}: the first item is a pace, which spaces starts, but may be meant as a limit: for limits "
            f"alone, give each={[SHARED, pace, *rest]}; for a pace, give starts a second: "
            f"each={[round(parse.SECOND / (own.interval or interval), 6), *rest]}"
        )
    return own


def in_words(each: int | None, own: Iterable[Limit]) -> str | None:
    """What each key has for itself, in words; None: nothing."""
    if each is None:
        return None
    return ", ".join([SHARED if each == OF_ALL else f"{parse.SECOND / each:.6g}/s", *map(text, own)])


def _may_be_limit(pace: float | str) -> bool:
    """Whether text such as `500/min` could be a limit as well: nobody thinks of a minute as an interval."""
    try:
        return any(rule.window > parse.SECOND for rule in rules_of([pace]))
    except (InvalidOption, InvalidInterval):
        return False


def _pace(pace: float | str, interval: int) -> int:
    if pace == SHARED:
        return OF_ALL
    try:
        own = rates.rate(pace)
    except InvalidInterval as error:
        raise InvalidOption(f"each={error} (each= {_FORMS})") from None
    if own < interval:
        raise InvalidOption(
            f"each={short(pace)} is faster than the common pace of one start in {parse.text(interval)}, "
            f"which holds for each key anyway: use a slower rate, or each={SHARED!r}"
        )
    return own


def limits_of(limits: Iterable[object], what: str = "limits=") -> tuple[Limit, ...]:
    """The limits of each key; errors say `what` they were given by.

    Raises:
        InvalidOption, InvalidInterval: see `intervalq._spec.limits.rules_of`; or one has fixed windows.
    """
    ruled = rules_of(limits, what)
    refuse_edges(ruled)
    return ruled


def refuse_edges(limits: Iterable[Limit]) -> None:
    """Refuse fixed windows as limits of a key.

    Raises:
        InvalidOption: one of them has fixed windows.
    """
    for limit in limits:
        if limit.edge is not None:
            raise InvalidOption(
                f"{text(limit)} can't be a limit of each key: slots of a key move while it waits for others, "
                "and would cross the edges of fixed windows; leave out 'from ...', or limit all keys "
                "together by limits="
            )


def pace_of(common: Settings, each: int, own: tuple[Limit, ...]) -> Settings:
    """The settings of a key under the common ones.

    The rules add what follows from the common record: see `keyed.apply_keyed`. For the limits see
    `intervalq._keys.limits`.
    """
    interval, limits = each or common.interval, (*own, *common.limits)
    return Settings(interval, tolerance=common.tolerance, ephemeral=True, limits=limits, own=len(own))


def other_each(record: str, state: State, ours: Settings | None = None) -> ConfigMismatch:
    """The error for slots of a key under one rate.

    Args:
        record: its name.
        state: the record, without the common limits.
        ours: the settings of a handle whose keys have a pace where this one has none, or have none; None: a
            handle without `each`.
    """

    def words(settings: Settings, *, own_pace: bool | None) -> str:
        return f"each= ({in_words(settings.interval if own_pace else OF_ALL, settings.limits)})"

    own_pace = has_own_pace(state)
    mine = "no each=" if ours is None else words(ours, own_pace=not own_pace)
    return ConfigMismatch(shown(record), mine, words(state.settings, own_pace=own_pace), fixed="each=")


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
        f"{name!r} is a key under the rate of {common!r}: configure() takes limits of this key, and interval "
        f"or rate if the key has a pace of its own; the common pace and limits are those of {common!r}"
    )

"""The rules of schedules: the record of one schedule, and its pure transitions. The specification.

A process applies a transition to the record that it knows, and the store replaces that by the result in one
atomic step, unless somebody else was faster: then the process knows the newer record and decides again. All
instants are microseconds since 1970 on the store's clock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

LAYOUT: Final = 2
"""The version of a record's layout. Layout 1 has no `asked`, so its readers would drop a request."""

_MAX_NUMBER: Final = 2**53
"""The largest number in a record."""


class BadRecord(ValueError):
    """A stored record was not written by these rules; the message says what is wrong."""


class NewerRecord(ValueError):
    """A stored record has the layout of a newer version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a store keeps of a schedule."""

    plan: str
    """When it occurs: the text of a `Plan`, which the rules only compare."""
    through: int
    """Occurrences that are scheduled up to this instant are decided: they have fired, were skipped, or don't
    count because the schedule didn't exist, had another plan, or was paused. Never goes back."""
    reported: int
    """Up to which occurrence those that were missed have been reported. Never goes back. A run has reported
    them once it has ended (where runs may overlap, once it has begun): if its process dies before, the next
    one reports them again."""
    fired: int | None = None
    """When the last occurrence that fired was scheduled; None: none has."""
    fence: int = 0
    """How many occurrences have fired: the fencing number of the last one. Never goes back."""
    holder: str = ""
    """Who fired the last one: a name that is used for one occurrence by one process."""
    until: int = 0
    """When the run of the last occurrence ends unless its holder renews the lease, or when it was given back.
    0: it has ended, and nothing waited for that. So who knows the run can tell the record after its end."""
    running: bool = False
    """Whether its holder has not reported the end of the run; where runs may overlap, its beginning."""
    paused: bool = False
    asked: int | None = None
    """When somebody asked for an occurrence beside the plan, at once; None: nobody has since one of the plan
    fired."""

    @property
    def is_asked(self) -> bool:
        """Whether the occurrence of `asked` has still to fire."""
        return self.asked is not None and self.asked > self.through

    def to_text(self) -> str:
        """The record as it is stored, in the oldest layout that holds it; the same text for the same one."""
        values = asdict(self)
        if self.asked is None:
            del values["asked"]
        return json.dumps({"version": LAYOUT if "asked" in values else 1, **values}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The record that `to_text` wrote.

        Raises:
            NewerRecord: it has the layout of a newer version.
            BadRecord: anything else is wrong with it.
        """
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecord("it is not JSON") from error
        version = data.get("version") if isinstance(data, dict) else None
        if type(version) is not int or version < 1:
            raise BadRecord("it has no 'version' of its layout")
        if version > LAYOUT:
            raise NewerRecord(f"it has layout {version}, and this version of intervalq knows up to {LAYOUT}")
        values: dict[str, Any] = {name: data.get(name) for name in _KINDS}
        for name, kinds in _KINDS.items():
            value = values[name]
            if type(value) not in kinds or (isinstance(value, int) and abs(value) > _MAX_NUMBER):
                raise BadRecord(f"'{name}' is missing or out of range")
        return cls(**values)


_KINDS: Final[dict[str, tuple[type, ...]]] = {
    field.name: {"str": (str,), "bool": (bool,), "int": (int,), "int | None": (int, type(None))}[
        str(field.type)
    ]
    for field in fields(Record)
}

Verdict: TypeAlias = Literal["ours", "paused", "taken", "early", "held", "misfire"]


class Outcome(NamedTuple):
    """What `fire` decided, and the record after it."""

    verdict: Verdict
    """`ours`: the caller may start the function. Otherwise nothing changes: the schedule is `paused`; the
    occurrence is decided already (`taken`); it is too `early`; the run of an earlier one has the lease
    (`held`); or it is too late (`misfire`)."""
    record: Record


def declare(record: Record | None, plan: str, now: int) -> Record:
    """Create a schedule, or change when it occurs. Occurrences up to now don't count under the new plan."""
    if record is None:
        return Record(plan=plan, through=now, reported=now)
    return record if record.plan == plan else replace(_decided(record, now), plan=plan)


def fire(
    record: Record,
    scheduled: int,
    due: int,
    now: int,
    holder: str,
    *,
    grace: int | None,
    lease: int,
    overlap: Literal["skip", "wait", "allow"] = "skip",
) -> Outcome:
    """Take an occurrence.

    Args:
        record: the schedule.
        scheduled: the instant that names the occurrence.
        due: when it may start: `scheduled`, or a little later.
        now: the store's clock.
        holder: who takes it.
        grace: how late it may be; None: without limit.
        lease: for how long the holder alone may run; with `allow`, for how long it may not have begun.
        overlap: whether runs may overlap. With `wait` they may not, and an occurrence counts as late only
            from the end of the earlier run.
    """
    if record.paused and scheduled != record.asked:
        return Outcome("paused", record)
    if scheduled <= record.through:
        return Outcome("taken", record)
    if now < due:
        return Outcome("early", record)
    if overlap != "allow" and record.running and now < record.until:
        return Outcome("held", record)
    if grace is not None and now - max(due, record.until if overlap == "wait" else due) > grace:
        return Outcome("misfire", record)
    asked = None if record.asked is None or record.asked < scheduled else record.asked
    fired = replace(record, through=scheduled, fired=scheduled, asked=asked)
    return Outcome("ours", _taken(fired, holder, now + lease))


def take_over(record: Record, holder: str, now: int, lease: int) -> Record:
    """Run the last occurrence again, whose holder has let its lease end. Otherwise nothing changes."""
    if not record.running or now < record.until:
        return record
    return _taken(record, holder, now + lease)


def ask(record: Record, now: int) -> Record:
    """Ask for an occurrence now, beside the plan, even in a pause. An earlier open request stays."""
    if record.is_asked:
        return record
    before = _decided(record, now - 1) if record.paused else record  # those of a pause don't count
    return replace(before, asked=max(now, before.through + 1))


def skip(record: Record, scheduled: int) -> Record:
    """Decide that an occurrence doesn't fire; the next one that does reports it as missed."""
    return replace(record, through=max(record.through, scheduled))


def renew(record: Record, holder: str, now: int, lease: int) -> Record:
    """Renew the lease of a run. If its holder has lost it, nothing changes."""
    if record.holder != holder or not record.running:
        return record
    return replace(record, until=max(record.until, now + lease))


def end(record: Record, holder: str, now: int, *, finished: bool, waited: bool = False) -> Record:
    """Give the lease of a run back.

    Args:
        record: the schedule.
        holder: whose run it is.
        now: the store's clock.
        finished: False: the next occurrence reports it as abandoned.
        waited: whether an occurrence waits for this, so that it is late only from now on.
    """
    if record.holder != holder or not record.running:
        return record
    until = min(record.until, now)
    if not finished or record.fired is None:
        return replace(record, until=until)
    reported = max(record.reported, record.fired)
    return replace(record, until=until if waited else 0, running=False, reported=reported)


def pause(record: Record) -> Record:
    """Fire nothing until `resume`."""
    return replace(record, paused=True)


def resume(record: Record, now: int) -> Record:
    """End a pause. Occurrences in it don't count."""
    return replace(_decided(record, now), paused=False) if record.paused else record


def _taken(record: Record, holder: str, until: int) -> Record:
    return replace(record, fence=record.fence + 1, holder=holder, until=until, running=True)


def _decided(record: Record, now: int) -> Record:
    """Decide the occurrences up to now; a requested one is put off until just after that."""
    through = max(record.through, now)
    asked = max(record.asked, through + 1) if record.asked is not None and record.is_asked else record.asked
    return replace(record, through=through, reported=max(record.reported, now), asked=asked)

"""Claims of plain tasks in ranges: there are very many, so each is made with as little as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from intervalq._spec import codec
from intervalq.errors import UnreadableValue
from intervalq.tasks._claim.task import Claim, Holder, V_co
from intervalq.tasks._spec.ids import PLAIN
from intervalq.tasks.rules import Range, Row


class Claimed(Protocol):
    """What the claims of a range have in common."""

    range: Range
    owner: Holder
    """The session that has claimed it."""
    session: str
    """Its id."""
    begun: bool
    """Whether its tasks count as begun since they were claimed."""


class PlainClaim(Claim[V_co]):
    """A claim of a plain task. It is held by its session as long as it is open."""

    __slots__ = ("_json", "_number", "_range")

    def __init__(self, range_: Claimed, number: int, json: str) -> None:
        self._range = range_
        """The range that it was claimed with."""
        self._number = number
        self._json = json
        self._began = range_.begun
        self._keep_for = 0
        self.open = True

    @property
    def value(self) -> V_co:
        """See `Task.value`. Nothing else that is usual needs the task's row."""
        try:
            value: V_co = codec.read(self._range.owner.form.codec, self._json, "")
        except UnreadableValue:
            return super().value  # its error names the task
        return value

    if not TYPE_CHECKING:  # for them, it has the attributes of a claim

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any attribute
            """Make what nobody has needed so far."""
            if name == "_row":
                value = self._row_of(self._range)
            elif name == "_form":
                value = self._range.owner.form
            elif name == "_session":
                value = self._range.owner
            elif name in {"_since", "_lease", "_on_lost"}:
                value = None
            else:
                raise AttributeError(f"a claim has no attribute {name!r}")
            setattr(self, name, value)
            return value

    def _row_of(self, of: Claimed) -> Row:
        id_ = f"{PLAIN}{of.range.part}-{self._number}"
        row = Row(id_, 1, of.range.queue, 0, self._json, claims=1, session=of.session)
        return row._replace(attempt=int(of.begun), begun=of.begun)

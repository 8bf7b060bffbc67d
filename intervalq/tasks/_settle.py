"""A claim on its way to be settled, or renewed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intervalq._timing.backends import Waker
from intervalq.errors import IntervalqError
from intervalq.tasks._task import Claim
from intervalq.tasks.rules import Change, Delete


class Settle:
    """A claim on its way to be settled."""

    # Of the class until they differ: there are very many, and of most only claim and part matter.
    bell: Waker | None = None
    """Who waits for it."""
    keeps = False
    """It is a renewal."""
    lost = False
    again = False
    """It was sent before, and may have been done then."""
    error: IntervalqError | None = None

    def __init__(self, claim: Claim, part: Delete | Change, bell: Waker | None = None) -> None:
        self.claim = claim
        self.part = part
        if bell is not None:
            self.bell = bell
            self.keeps = isinstance(part, Change) and part.keep

    @property
    def is_answered(self) -> bool:
        """Whether who waits has been told."""
        return self.bell is not None and self.bell.done()

    @property
    def lease(self) -> int | None:
        """Of a renewal: for how long."""
        return self.part.lease if isinstance(self.part, Change) else None

    def end(self) -> None:
        """Tell who waits."""
        if self.bell is not None and not self.bell.done():
            self.bell.set_result(None)

    def check(self) -> None:
        """Raise what came of it, if it wasn't done."""
        if self.error is not None:
            raise self.error
        if self.lost:
            raise self.claim.lost()

    def now(self) -> Delete | Change:
        """What the store is asked for, at the version that renewals have brought."""
        part, version = self.part, self.claim.row.version
        if part.version == version:
            return part
        return replace(part, version=version) if isinstance(part, Change) else Delete(part.id, version)


def one_each(settles: Sequence[Settle]) -> tuple[list[Settle], list[Settle]]:
    """Those for the next call, and those for a later one: a renewal makes another version of its claim."""
    batch: dict[str, Settle] = {}
    later: list[Settle] = []
    for settle in settles:
        if settle.claim.row.id in batch:
            later.append(settle)
        else:
            batch[settle.claim.row.id] = settle
    return list(batch.values()), later

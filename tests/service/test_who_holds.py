"""Who holds a queue, as a service knows it."""

from __future__ import annotations

from intervalq.rules import Command, Drop, Hold, Reclaim, Resume
from intervalq.service._access import Subject
from intervalq.service._actions import Actions

HOUR = 3_600_000_000


def holder(*done: tuple[str, Command]) -> str | None:
    """Who holds the queue after these actions."""
    actions = Actions()
    for name, command in done:
        actions.note_queue(Subject(name, ()), "api", command)
    action = actions.hold("api")
    return None if action is None else action.who


def test_a_hold_is_that_of_who_asked_for_the_later_end() -> None:
    long, short = Hold(length=HOUR), Hold(length=1_000_000)
    assert holder(("ann", long)) == "ann"
    assert holder(("ann", long), ("bob", short)) == "ann"
    assert holder(("ann", short), ("bob", long)) == "bob"
    assert holder(("ann", long), ("bob", Reclaim())) == "ann"
    assert holder(("ann", long), ("bob", Resume())) is None
    assert holder(("ann", long), ("bob", Drop())) is None

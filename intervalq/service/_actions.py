"""What callers have changed at a service for everybody, and who they were. A log tells of each."""

from __future__ import annotations

import logging
import time
from operator import itemgetter
from typing import Final, NamedTuple

from intervalq._keys.names import shown
from intervalq.rules import FOREVER, Command, Configure, Drop, Hold, Reclaim, Resume
from intervalq.service._access import Caller, Wanted

log: Final = logging.getLogger("intervalq.actions")

_MAX_ACTIONS: Final = 200


class Action(NamedTuple):
    """What somebody did."""

    at: float
    """Seconds since 1970, on the clock of this machine."""
    who: str
    """The subject of an access file."""
    what: str
    """For example `pause`."""
    on: str
    """For example `queue api`."""
    seen: Wanted
    """What somebody must be allowed to do to see it."""


class Actions:
    """The last actions at a service. The store has none of this, so each service knows its own.

    Of the same actions in a row, such as cool-downs, only the last one is kept.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Action] = {}
        self._holds: dict[str, tuple[Action, float]] = {}  # with the end, on the clock of this machine

    def note(self, caller: Caller, what: str, kind: str, name: str, seen: str | None = None) -> Action:
        """Note that a caller has done something, and log it with `who`, `action` and `subject` as fields.

        Args:
            caller: who has.
            what: the action.
            kind: of what it concerns: `queue`, `schedule` or `tasks of`.
            name: its name.
            seen: the name by which access rules say who may see it; None: `name`.
        """
        on = f"{kind} {name}"
        action = Action(time.time(), caller.name, what, on, ("read", name if seen is None else seen))
        log.info("%s: %s %s", *action[1:4], extra={"who": action.who, "action": what, "subject": on})
        self._known.pop(action[1:4], None)
        self._known[action[1:4]] = action
        for old in [*self._known][:-_MAX_ACTIONS]:
            del self._known[old]
        return action

    def note_queue(self, caller: Caller, record: str, command: Command) -> None:
        """Note a command on a queue, or on a key of it, if it changes something for everybody."""
        if (what := _named(command)) is None:
            return
        action = self.note(caller, what, "queue", name := shown(record), record.partition(":")[0])
        if isinstance(command, Resume | Drop):
            self._holds.pop(name, None)
        elif isinstance(command, Hold):
            hold = action, action.at + command.length / 1e6
            known = self._holds.pop(name, hold)
            self._holds[name] = max(known, hold, key=itemgetter(1))  # of two holds, the later end counts
            for old in [*self._holds][:-_MAX_ACTIONS]:
                del self._holds[old]

    def hold(self, name: str) -> Action | None:
        """The last action here that holds a queue, or a key of it; None: others do."""
        action, until = self._holds.get(name, (None, 0.0))
        return action if until > time.time() else None

    def last(self) -> list[Action]:
        """The last actions, the latest first."""
        return [*self._known.values()][::-1]


def _named(command: Command) -> str | None:
    if isinstance(command, Hold):
        return "pause" if command.length >= FOREVER else "hold"
    kinds = {Resume: "resume", Configure: "configure", Reclaim: "reclaim", Drop: "drop"}
    return kinds.get(type(command))

"""What callers have changed at a service for everybody, and who they were."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import NamedTuple

from intervalq._keys.names import shown
from intervalq._observe.actions import DONE, MAX_SHOWN, Action, note
from intervalq.rules import FOREVER, Command, Configure, Drop, Hold, Reclaim, Resume
from intervalq.service._access import Caller, Wanted


class Act(NamedTuple):
    """What a caller has done."""

    action: str
    kind: str
    """Of what it concerns: `queue`, `schedule`, `ledger` or `tasks of`."""
    name: str
    seen: str
    """The name by which access rules say who may see it."""
    result: str = DONE


class Noted(NamedTuple):
    """An action, and who may see it."""

    action: Action
    seen: Wanted
    """What somebody must be allowed to do to see it."""


class Actions:
    """The last actions at a service. The store has none of this, so each service knows its own.

    Of the same actions in a row, such as cool-downs, only the last one is kept.
    """

    def __init__(self, store: str = "") -> None:
        """`store`: the URL of the store, without secrets."""
        self._store = store
        self._known: dict[tuple[str, ...], Noted] = {}
        self._holds: dict[str, tuple[Action, float]] = {}  # with the end, on the clock of this machine

    def note(self, caller: Caller, act: Act) -> Action:
        """Write down that a caller has done something."""
        done = note(caller.name, act.action, f"{act.kind} {act.name}", self._store, act.result)
        self._known.pop(done[:4], None)
        self._known[done[:4]] = Noted(done, ("read", act.seen))
        for old in [*self._known][:-MAX_SHOWN]:
            del self._known[old]
        return done

    def note_queue(self, caller: Caller, record: str, command: Command) -> None:
        """Note a command on a queue, or on a key of it, if it changes something for everybody."""
        if (what := _named(command)) is None:
            return
        name = shown(record)
        action = self.note(caller, Act(what, "queue", name, record.partition(":")[0]))
        if isinstance(command, Resume | Drop):
            self._holds.pop(name, None)
        elif isinstance(command, Hold):
            hold = action, action.at + command.length / 1e6
            known = self._holds.pop(name, hold)
            self._holds[name] = max(known, hold, key=itemgetter(1))  # of two holds, the later end counts
            for old in [*self._holds][:-MAX_SHOWN]:
                del self._holds[old]

    def hold(self, name: str) -> Action | None:
        """The last action here that holds a queue, or a key of it; None: others do."""
        action, until = self._holds.get(name, (None, 0.0))
        return action if until > time.time() else None

    def last(self) -> list[Noted]:
        """The last actions, the latest first."""
        return [*self._known.values()][::-1]


def _named(command: Command) -> str | None:
    if isinstance(command, Hold):
        return "pause" if command.length >= FOREVER else "cool-down"
    kinds = {Resume: "resume", Configure: "configure", Reclaim: "reclaim", Drop: "drop"}
    return kinds.get(type(command))

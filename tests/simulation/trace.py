"""The trace of a run as readable lines, which are the same each time the run is repeated."""

from __future__ import annotations

import hashlib

from intervalq.rules import FOREVER, Advance, Answer, Command, Configure, Finish, Hold


class Trace:
    """Collects events, and formats them only when they are requested."""

    def __init__(self) -> None:
        self._events: list[tuple[float, str, str, tuple[object, ...]]] = []
        self._names: dict[str, str] = {}

    def add(self, at: float, who: str, what: str, *more: object) -> None:
        """Add an event."""
        self._events.append((at, who, what, more))

    def name(self, generation: str) -> str:
        """A repeatable name for a record's generation, which is random."""
        return self._names.setdefault(generation, f"g{len(self._names) + 1}")

    def lines(self) -> list[str]:
        """All events, one per line."""
        return [
            f"{at:11.6f}  {who:9} {what:8} {' '.join(map(self._word, more))}".rstrip()
            for at, who, what, more in self._events
        ]

    def digest(self) -> str:
        """A digest by which traces are compared."""
        return hashlib.blake2b("\n".join(self.lines()).encode(), digest_size=12).hexdigest()

    def _word(self, thing: object) -> str:
        if isinstance(thing, Answer):
            return " ".join(self._answer(thing))
        return " ".join(_command(thing)) if isinstance(thing, Command) else str(thing)

    def _answer(self, answer: Answer) -> list[str]:
        state = answer.state
        if state is None:
            return ["no record"]
        reported = [
            f"{self.name(state.generation)} ticket={state.ticket} current={state.current}",
            f"revoked={state.revoked_through} late={state.late_total}",
            f"clock={state.clock(answer.now)} due={state.due}",
        ]
        if state.held_since is not None:
            reported.append("held")
        tickets = {"running": sorted(state.running), "granted": answer.granted, "missed": answer.missed}
        reported += [f"{name}={list(some)}" for name, some in tickets.items() if some]
        if answer.first is not None:
            reported.append(f"takes={answer.first.ticket}+{answer.count} from {answer.first.due}")
        if answer.begun:
            reported.append(f"begun={answer.begun}")
        return reported + [name for name in ("refused", "healed", "woken") if getattr(answer, name)]


def _command(command: Command) -> list[str]:
    reported = [type(command).__name__]
    if isinstance(command, Advance):
        parts = {
            "use": [slot.ticket for slot in command.slots],
            "release": [slot.ticket for slot in command.release],
            "take": command.take,
            "notice": command.notice,
            "reach": command.reach,
        }
        reported += [f"{name}={value}" for name, value in parts.items() if value]
    elif isinstance(command, Finish):
        reported.append(f"ended={list(command.ended)} running={list(command.running)}")
    elif isinstance(command, Hold):
        reported.append("for ever" if command.length >= FOREVER else f"for {command.length}")
    elif isinstance(command, Configure):
        reported.append(f"interval={command.interval}")
    return reported

"""Which of the slots that a command lists were granted, and where they are then."""

from __future__ import annotations

from intervalq._spec.standing import placed
from intervalq.rules import Advance, Answer, Command, Slot


def granted_slots(command: Command, answer: Answer) -> list[Slot]:
    """The listed slots that a step granted, each where it is since then."""
    if not isinstance(command, Advance) or answer.state is None:
        return []
    return [placed(answer.state, slot) for slot in command.slots if slot.ticket in answer.granted]


def slots_that_came_sooner(command: Command, answer: Answer) -> list[Slot]:
    """Those of them that are elsewhere now."""
    listed = command.slots if isinstance(command, Advance) else ()
    return [slot for slot in granted_slots(command, answer) if slot not in listed]

"""A counterexample in readable form: one line per step."""

from __future__ import annotations

from collections.abc import Iterator

from model.parts import Grant, Question, Reply, Slot, Step
from model.search import Result


def story(result: Result) -> list[str]:
    """The shortest path to a broken promise."""
    lines, at = [], 0
    for number, (who, step) in enumerate(result.trace, 1):
        what = " ".join([who, step.what, *_details(step, at)]).strip()
        lines.append(f"{number:4}  at {at:<3} {what}")
        at += step.what == "a tick"
    if result.broken:
        lines.append(f"{'broken:':>11} {result.broken}")
    return lines


def _details(step: Step, at: int) -> Iterator[str]:
    for detail in step.detail:
        match detail:
            case Question():
                yield "; ".join(_asked(detail)) + ":"
            case Reply():
                yield "; ".join(_slots(detail, at)) or "nothing new"
            case Grant():
                yield f"slot {detail.ticket} (at {at + detail.instant})"
            case Slot():
                yield f"ticket {detail.ticket}"
            case _:
                yield str(detail)


def _asked(question: Question) -> Iterator[str]:
    if question.slots:
        yield f"use {_tickets(question.slots)}"
    if question.release:
        yield f"give back {_tickets(question.release)}"
    if question.take:
        yield f"take {question.take}"
    if question.ended:
        yield f"ended {list(question.ended)}"
    if question.running:
        yield f"still run {list(question.running)}"
    if question.reach:
        yield f"reach {question.reach}"
    if question.notice:
        yield f"notice {question.notice}"


def _slots(reply: Reply, at: int) -> Iterator[str]:
    for grant in (*reply.granted, *reply.begun):
        yield f"granted {grant.ticket} (at {at + grant.instant})"
    if reply.missed:
        yield f"missed {list(reply.missed)}"
    if reply.taken:
        yield f"new {_tickets(reply.taken)}"


def _tickets(slots: tuple[Slot, ...]) -> str:
    return str([slot.ticket for slot in slots])

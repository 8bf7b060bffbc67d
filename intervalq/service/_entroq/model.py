"""Tasks of a store in the terms of the protocol, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import Message

from intervalq.rules import FOREVER
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.claimants import claimant_of
from intervalq.service._entroq.values import Budget, value_of, whole_number
from intervalq.service._refusal import Code, Refusal
from intervalq.tasks.rules import QueueStats, Row

MILLISECOND: Final = 1_000


def task_of(
    row: Row, budget: Budget | None = None, *, claimant: str | None = None, value: bool = True
) -> pb.Task:
    """A task as the protocol shows it.

    Args:
        row: the task as the store has it.
        budget: what the answer may still have; None: it has no other task.
        claimant: shown as its claimant; None: who has claimed it.
        value: False: without its value.
    """
    ready = row.at if row.session is None or row.until is None else row.until
    return pb.Task(
        queue=row.queue,
        id=row.id,
        version=row.version,
        at_ms=ready // MILLISECOND,
        claimant_id=claimant_of(row) if claimant is None else claimant,
        value=value_of(row.json, budget or Budget()) if value else None,
        created_ms=row.created // MILLISECOND,
        modified_ms=row.modified // MILLISECOND,
        claims=row.claims,
        attempt=row.attempt,
        err=row.error,
    )


def whole(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """JSON whose whole numbers are written as such: the protocol's numbers all have a fraction."""
    if isinstance(value, float):
        return whole_number(value)
    if isinstance(value, list):
        return [whole(one) for one in value]
    return {name: whole(one) for name, one in value.items()} if isinstance(value, dict) else value


def at_of(ms: int) -> int | None:
    """An instant of the protocol in microseconds; None: now.

    Raises:
        Refusal: it is out of range.
    """
    if ms <= 0:
        return None
    if ms * MILLISECOND >= FOREVER:
        raise Refusal(Code.INVALID_ARGUMENT, f"at_ms={ms} is out of range: give milliseconds since 1970")
    return ms * MILLISECOND


def span_of(ms: int) -> int:
    """A time from now in microseconds; below 0: past.

    Raises:
        Refusal: it is out of range.
    """
    if abs(ms) * MILLISECOND >= FOREVER // 2:
        raise Refusal(Code.INVALID_ARGUMENT, f"by_ms={ms} is out of range: give milliseconds from now")
    return ms * MILLISECOND


def stats_of(queue: QueueStats) -> pb.QueueStats:
    """The numbers of a queue."""
    return pb.QueueStats(
        name=queue.name,
        num_tasks=queue.size,
        num_claimed=queue.claimed,
        num_available=queue.ready,
        max_claims=queue.most_claims,
        num_future=queue.size - queue.claimed - queue.ready,
    )


def detail(kind: pb.ActionType, ids: Sequence[str], asked: dict[str, pb.TaskID]) -> list[pb.ModifyDep]:
    """The parts of a request that can't be done, as details of the error."""
    return [pb.ModifyDep(type=kind, id=asked.get(one, pb.TaskID(id=one))) for one in ids]


def details_of(refused: Refusal) -> list[Message]:
    """The details of a refusal, as EntroQ has them."""
    denied = [pb.AuthzDep(actions=[action.upper()], exact=queue) for action, queue in refused.denied]
    return [*refused.details, *denied]

"""The names of metrics, spans and attributes, all in one place because the conventions still change."""

from __future__ import annotations

from typing import Final, NamedTuple


class Name(NamedTuple):
    """A metric."""

    name: str
    unit: str
    description: str


STARTS: Final = Name("intervalq.starts", "{start}", "Jobs that began.")
UNUSED: Final = Name("intervalq.slots.unused", "{slot}", "Slots that were given up, by cause.")
REFUSED: Final = Name("intervalq.refusals", "{refusal}", "Jobs that the called server refused.")
WAIT: Final = Name("intervalq.wait", "s", "From when a job was added until it began.")
LATENESS: Final = Name("intervalq.lateness", "s", "From the slot of a job until it began.")
TASKS: Final = Name("intervalq.tasks", "{task}", "Durable tasks that were worked on, by outcome.")
REQUESTS: Final = Name("intervalq.service.requests", "s", "Requests to the service, by verb and outcome.")
WAITING: Final = Name(
    "intervalq.service.waiting",
    "{request}",
    "Claims, slots and streams of wake-ups that wait in the service.",
)

QUEUE: Final = "intervalq.queue"
TICKET: Final = "intervalq.ticket"
CAUSE: Final = "intervalq.cause"
VERB: Final = "intervalq.verb"
KIND: Final = "intervalq.kind"
OUTCOME: Final = "intervalq.outcome"
TASK: Final = "intervalq.task.id"
ATTEMPT: Final = "intervalq.task.attempt"

JOB_SPAN: Final = "intervalq job"
TASK_SPAN: Final = "intervalq task"
INSERT_SPAN: Final = "intervalq insert"
BEGAN: Final = "began"

WAITS: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0)
LATE: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Bounds of buckets, in seconds."""

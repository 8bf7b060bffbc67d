"""What all judges share: the form of their findings, how they name a start, and how exact instants are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulation.facts import Start

GRAIN: Final = 10e-6
"""Allowance for readings that are rounded to microseconds several times, in seconds."""

Findings = Iterator[tuple[float, str]]
"""Broken promises: when each was, and what it was."""


def named(start: Start) -> str:
    """A description of a start."""
    job, ticket = start.job, f"ticket {start.ticket} of {start.record}"
    return f"job {job.number} of {job.process.name} ({ticket}, at {start.at:.6f})"

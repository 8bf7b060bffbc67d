"""Stores of tasks, and queues in them, for tests of the data source."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from intervalq.tasks.sync import Tasks

ROWS = StructType().add("id", LongType()).add("json", StringType())


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "app.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


@pytest.fixture
def queue(store: str) -> Iterator[str]:
    """A queue for one test, which is emptied at the end."""
    name = f"q{secrets.token_hex(6)}"
    yield name
    with Tasks(store) as tasks:
        while left := tasks.tasks(name, values=False):
            tasks.modify(*(task.delete() for task in left))


@pytest.fixture
def tasks(store: str) -> Iterator[Tasks]:
    with Tasks(store) as handle:
        yield handle

"""The command line for each test: in the test's own folder, and gone with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_line import CommandLine


@pytest.fixture
def intervalq(tmp_path: Path) -> Iterator[CommandLine]:
    command = CommandLine(tmp_path)
    yield command
    command.end()

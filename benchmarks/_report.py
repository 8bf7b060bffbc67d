"""What the commands share: list options, a description of the machine, rows as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def words(text: str) -> list[str]:
    """The words of an option, separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def machine() -> dict[str, Any]:
    """A description of this machine."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "begun": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }


def write(path: Path, here: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write each run of each row as JSON; unknown figures are null."""
    known = [{name: None if value != value else value for name, value in row.items()} for row in rows]  # noqa: PLR0124 - NaN
    path.write_text(json.dumps({"machine": here, "rows": known}, indent=1, allow_nan=False))

"""A demo for queues: an API with a rate limit, a client, and 249 requests to make."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

LOOKUP: Final = Path(__file__).with_name("lookup.py")
"""The client, as a command: `python -I -S lookup.py URL CODE`."""


def countries() -> list[str]:
    """List the codes of all countries (ISO 3166-1 alpha-2), sorted: what the API knows."""
    return files(__name__).joinpath("countries.txt").read_text(encoding="ascii").split()

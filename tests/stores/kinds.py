"""The URL of a fresh store of each kind, for tests that run on several."""

from __future__ import annotations

from pathlib import Path

import pytest


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a store: in memory, of a file in `folder`, or of a server that a fixture starts."""
    if kind == "memory":
        return f"memory://{folder}"
    if kind == "sqlite":
        return f"sqlite://{folder}/app.db"
    url: str = request.getfixturevalue(f"{kind}_url")
    return url

from __future__ import annotations

from pathlib import Path

import pytest

from schedules.storm import storm
from stores.kinds import url_of


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_kills_double_nothing_and_lose_only_what_was_taken(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, prefix = url_of(kind, request, tmp_path), f"{tmp_path.name}-"
    found = storm(url, prefix, tmp_path / "log", processes=3, schedules=4, kills=3)
    assert found["doubled"] == 0, found
    assert found["taken"] <= 3 * 4, found
    assert found["taken"] or not found["lost"], found
    assert found["fired"] > 3 * 4, found

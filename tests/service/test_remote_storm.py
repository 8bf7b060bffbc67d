from __future__ import annotations

from pathlib import Path

from service.remote_storm import storm


def test_kills_of_services_and_workers_lose_and_double_nothing(tmp_path: Path) -> None:
    assert storm(f"{tmp_path}/app.db", tasks=200, kills=3) == {"done": 200, "lost": 0, "doubled": 0}

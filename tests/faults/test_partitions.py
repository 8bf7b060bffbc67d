"""One of three shards is cut off from the store: the others pass its tickets, and it comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from faults.needs import need_command, need_namespaces


def test_shards_go_on_while_one_is_cut_off_and_it_comes_back() -> None:
    need_namespaces("--net")
    need_command("ip", "iproute2")
    script = Path(__file__).with_name("partitions.py")
    ended = subprocess.run(
        [sys.executable, str(script), "--rounds", "2"], capture_output=True, text=True, check=False
    )
    assert ended.stdout, ended.stderr
    verdict = json.loads(ended.stdout)
    assert verdict["broken"] == []
    assert verdict["unexplained"] == 0
    assert verdict["starts"] >= 2 * 3 * 2 + 2 * 2 * 8
    assert ended.returncode == 0

"""The costs of intervalq alone: the benchmarks without peers, each a script of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _run import HERE, Progress

QUICK = {
    "scale": ["--seconds=2", "--settle=2", "--queues=1,100", "--jobs=500", "--waiting=1,100,10000"],
    "overhead": ["--calls=2000", "--rounds=1"],
    "wakeup": ["--rounds=3"],
}
"""The scripts, and the arguments for a quick run of each."""


class Own:
    """One of the scripts."""

    def __init__(self, name: str, options: Namespace) -> None:
        self._name = name
        self._arguments = QUICK[name] if options.quick else []
        self.steps = 0 if options.peers and "intervalq" not in options.peers else 1

    def rows(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """Run it; it prints its own tables."""
        if not self.steps:
            return
        progress.step(f"{self._name}: see {self._name}.py")
        print(f"\n== {self._name}\n", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "found.json"
            script = HERE / f"{self._name}.py"
            subprocess.run([sys.executable, script, *self._arguments, "--json", file], check=True)
            found = json.loads(file.read_text())
        parts = found.items() if isinstance(found, dict) else [(self._name, found)]
        for part, rows in parts:
            yield from ({"question": self._name, "part": part, **row} for row in rows)

"""A small pipeline to run again and again: its spec, its rows, and a record of every call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# The behaviour of calls is in files beside it, so that a test can change it between runs. A line per
# call is one write.
CALLS = """
import os, signal
from pathlib import Path

HERE = Path(__file__).parent

async def fetch(row, ctx):
    with (HERE / "called").open("a") as record:
        record.write(ctx.row_key + "\\n")
    if row["name"] in (HERE / "bad").read_text().split():
        raise RuntimeError("refused")
    if row["name"] in (HERE / "deadly").read_text().split():
        os.kill(os.getpid(), signal.SIGKILL)
    await HELD(row["name"])
    if row["name"] in (HERE / "odd").read_text().split():
        return {"size": "large", "again": ctx.key}
    return {"size": len(row["name"]), "again": ctx.key}

async def HELD(name):
    import anyio
    while name in (HERE / "slow").read_text().split():
        await anyio.sleep(0.02)
"""

SPEC = """
[pipeline]
name = "visits"
output = "out"

[input]
path = "visits.jsonl"
key = "id"

[input.require]
positive = "n >= 0"

[call]
function = "calls:fetch"
schema = "size int, again string"
concurrency = 4
tasks = 1

[queue]
interval = "1ms"
burst = 30000
store = "state.db"
"""
"""A burst larger than the number of rows: no test waits for slots, and no machine is too slow to be in time.

But two tasks that begin at once may do so out of order, which an audit reports.
"""


@contextmanager
def unaudited() -> Iterator[None]:
    """Let runs end without an audit of the log, which takes half of their time, where none is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intervalq.pipeline._run.judge", lambda *_: None)
        yield


class Small:
    """A pipeline in a folder: 60 rows, of which 51 can be called."""

    callable = frozenset(f"k{number}" for number in range(51))
    rejected = {"duplicate_key": 1, "key_missing": 2, "malformed": 1, "positive": 3}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "visits.toml"
        self.file.write_text(SPEC)
        (folder / "calls.py").write_text(CALLS)
        for name in ("called", "bad", "deadly", "slow", "odd"):
            (folder / name).write_text("")
        rows: list[dict[str, Any]] = [{"id": f"k{n}", "name": f"name{n}", "n": n} for n in range(51)]
        rows.append({"id": "k1", "name": "other", "n": 1})
        rows += [rows[2]]
        rows += [{"id": None, "name": f"nobody{n}", "n": 1} for n in range(2)]
        rows += [{"id": f"x{n}", "name": "", "n": [-1, -2, None][n]} for n in range(3)]
        lines = [json.dumps(row) for row in rows] + ["{broken", json.dumps(rows[3])]
        (folder / "visits.jsonl").write_text("\n".join(lines) + "\n")

    def set(self, name: str, *rows: str) -> None:
        """Make rows `bad` (they fail), `deadly` (they kill), `slow`, or `odd` (their size is text)."""
        (self.folder / f"{name}.new").write_text(" ".join(rows))
        (self.folder / f"{name}.new").replace(self.folder / name)

    def release(self) -> None:
        """Let the calls that have begun end; those that begin from now on are slow."""
        called = self.called()
        self.set("slow", *(f"name{number}" for number in range(51) if f"k{number}" not in called))

    def called(self) -> Counter[str]:
        """How often each row was called."""
        return Counter((self.folder / "called").read_text().split())

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table, read without Spark."""
        import pyarrow.dataset as ds

        found = ds.dataset(self.folder / "out" / name, format="parquet", partitioning="hive")
        rows: list[dict[str, Any]] = found.to_table().to_pylist()
        return rows

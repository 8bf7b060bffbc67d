"""Does a step without limits cost what it cost in another version?

A step is measured in the rules, on a SQLite file, and on a Redis, as busy shards request it: grants for some slots, and
tickets for the next ones. Figures are CPU time in microseconds, because other work on the machine changes them
less than elapsed time: of the process for rules, file and `client`, of the server for `redis`. The two versions take
turns, each in new processes; the table has the median of all turns, and the one of the ratios within a turn. The
third version is a copy of the first: its ratio says how far the machine can be trusted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from _store import Meter, store_of
from _table import Column, table
from intervalq import rules
from intervalq.rules import Advance, Settings, Slot, State
from intervalq.store import open_store

HERE = Path(__file__).parent
NOW = 1_800_000_000_000_000
STEP = 10_000
SETTINGS = Settings(STEP, burst=1_000)  # with credit, so that slots of now are in time
STATE = State(
    generation="g",
    settings=SETTINGS,
    ticket=100,
    due=NOW,
    current=0,
    current_due=NOW - 100 * STEP,
    last_now=NOW,
)
SLOTS = tuple(Slot(ticket, NOW - (100 - ticket) * STEP) for ticket in range(1, 101))
TAKE = Advance(settings=SETTINGS, nonce="n", take=1)
STEPS = {
    "take 1": replace(TAKE, generation="g"),
    "take 100": replace(TAKE, generation="g", take=100),
    "use 1, take 1": replace(TAKE, generation="g", slots=SLOTS[:1]),
    "use 100, take 100": replace(TAKE, generation="g", slots=SLOTS, take=100),
}
LIVE = Settings(1_000_000, burst=10_000_000)  # all slots are in time
COLUMNS = (
    Column("step", "step"),
    Column("before us", "before", "{:.2f}"),
    Column("now us", "now", "{:.2f}"),
    Column("ratio", "ratio", "{:.3f}"),
    Column("lowest", "lowest", "{:.3f}"),
    Column("highest", "highest", "{:.3f}"),
    Column("a copy of before", "control", "{:.3f}"),
)


def cpu_of(work: Callable[[], object], times: int, parts: int = 9) -> float:
    """The CPU time of one call in microseconds: the least of several parts."""
    part = []
    for _ in range(parts):
        begin = time.process_time()
        for _ in range(times):
            work()
        part.append((time.process_time() - begin) / times * 1e6)
    return min(part)


def of_rules() -> dict[str, float]:
    """What steps of the rules cost."""
    return {
        f"rules: {name}": cpu_of(lambda command=command: rules.apply(STATE, command, NOW), 500)  # type: ignore[misc]
        for name, command in STEPS.items()
    }


def of_store(kind: str, tickets: int, steps: int) -> dict[str, float]:
    """What a step that uses slots and takes the next ones costs."""
    with store_of(kind) as url:
        meter = Meter(url) if kind == "redis" else None
        name = f"{kind}: use {tickets}, take {tickets}"

        async def main() -> dict[str, float]:
            store = open_store(url)
            slots: tuple[Slot, ...] = ()
            take = Advance(settings=LIVE, nonce="n", take=tickets)

            async def some(number: int) -> None:
                nonlocal slots
                for _ in range(number):
                    answer = await store.apply("bench", replace(take, generation="n", slots=slots))
                    assert len(answer.granted) == len(slots)
                    slots = answer.taken

            await some(20)
            client, server = [], []
            for _ in range(5):
                before = meter.read() if meter else None
                begin = time.process_time()
                await some(steps)
                client.append((time.process_time() - begin) / steps * 1e6)
                if meter and before:
                    server.append(meter.between(before, meter.read(), steps)["store_us"])
            await store.aclose()
            figures = {f"{name}, client" if meter else name: min(client)}
            return figures | ({name: min(server)} if meter else {})

        return asyncio.run(main())


def here(parts: list[str]) -> dict[str, float]:
    """The figures of these parts, of the version that was imported."""
    figures = of_rules() if "rules" in parts else {}
    for tickets in (1, 100):
        for kind, steps in (("sqlite", 200), ("redis", 1_000)):
            if kind in parts:
                figures |= of_store(kind, tickets, steps)
    return figures


def version(folder: Path, only: str) -> dict[str, float]:
    """The figures of the version in a folder."""
    command = [sys.executable, __file__, "--here", "--only", only]
    paths = f"{folder}{os.pathsep}{folder / 'stores'}"
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, stdout=-1, check=True)
    figures = json.loads(done.stdout)
    for place in figures.pop("places"):
        assert Path(place).is_relative_to(folder), f"{place} is not in {folder}"
    return dict(figures)


def unpacked(commit: str, folder: Path) -> Path:
    """The packages as they were in a commit."""
    command = ["git", "archive", commit, "intervalq", "stores"]
    packed = subprocess.run(command, cwd=HERE.parent, stdout=-1, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def compare(before: str, now: str, turns: int, only: str) -> None:
    """Print the table of two commits."""
    with tempfile.TemporaryDirectory() as scratch:
        names = {"before": before, "now": now, "control": before}
        folders = {name: unpacked(commit, Path(scratch, name)) for name, commit in names.items()}
        rounds: list[dict[str, dict[str, float]]] = []
        for turn in range(turns):
            order = list(folders)[turn % 3 :] + list(folders)[: turn % 3]
            rounds.append({name: version(folders[name], only) for name in order})
            print(f"turn {turn + 1} of {turns}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    rows: list[dict[str, object]] = []
    for step in rounds[0]["now"]:
        ratios = [each["now"][step] / each["before"][step] for each in rounds]
        rows.append(
            {
                "step": step,
                "before": statistics.median(each["before"][step] for each in rounds),
                "now": statistics.median(each["now"][step] for each in rounds),
                "ratio": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "control": statistics.median(each["control"][step] / each["before"][step] for each in rounds),
            }
        )
    print(table(COLUMNS, rows))


def main() -> None:
    """Compare two commits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", default="7a81f33^", help="a commit; the default has no limits yet")
    parser.add_argument("--now", default="HEAD", help="a commit")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default="rules,sqlite,redis", help="the parts to measure, with commas")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        figures = here(options.only.split(","))
        print(
            json.dumps({"places": [rules.__file__, sys.modules["intervalq_stores"].__path__[0]], **figures})
        )
    else:
        compare(options.before, options.now, options.turns, options.only)


if __name__ == "__main__":
    main()

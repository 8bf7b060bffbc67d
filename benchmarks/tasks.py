"""Durable tasks beside other libraries and hand-written floors, on one PostgreSQL, and in SQLite.

Prints a table for each question as soon as it is done; README.md says what the columns mean. Run it on a quiet
machine, and compare within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from _tasks_questions import QUESTIONS, Progress, Questions
from _tasks_run import install
from _tasks_server import databases
from _tasks_tables import summary

PEERS = ("pgqueuer", "procrastinate", "chancy", "oban", "graphile")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_words, default=list(QUESTIONS), help="some of " + ",".join(QUESTIONS))
    parser.add_argument("--jobs", type=int, default=20_000, help="tasks of a row; quick contenders get more")
    parser.add_argument("--runs", type=int, default=3, help="runs of each row, in turns; medians are shown")
    parser.add_argument(
        "--peers",
        type=_words,
        default=[],
        help=f"some of {','.join(PEERS)}, or `none`, which leaves out floors, too",
    )
    parser.add_argument("--commit", choices=["off", "on"], default="off", help="synchronous_commit")
    parser.add_argument(
        "--uvloop", action="store_true", help="all in uvloop, not only those whose own command takes it"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one worker: to try it out")
    parser.add_argument("--json", type=Path, help="write each run of each row here")
    options = parser.parse_args()
    for name in options.only:
        if name not in QUESTIONS:
            parser.error(f"--only: {name} is none of {', '.join(QUESTIONS)}")
    for name in options.peers:
        if name not in (*PEERS, "none"):
            parser.error(f"--peers: {name} is none of {', '.join(PEERS)}")
    return options


def _versions() -> dict[str, str]:
    found = {}
    for name in ("intervalq", *PEERS, "asyncpg", "psycopg", "uvloop"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _machine(postgres: str, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "begun": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "postgres": postgres,
        "synchronous_commit": options.commit,
        "sqlite": sqlite3.sqlite_version,
        **_versions(),
    }


def main() -> None:
    """Read the options, run, print, write."""
    options = _options()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts end what they started
    rows: list[dict[str, Any]] = []
    here: dict[str, Any] = {}
    try:
        with databases(install, commit=options.commit) as made:
            here = _machine(made.version, options)
            print(", ".join(f"{name} {value}" for name, value in here.items()), flush=True)
            questions, progress = Questions(options, made), Progress()
            for name in QUESTIONS:
                if name in options.only:
                    mine = list(QUESTIONS[name](questions, progress))
                    rows += mine
                    print(f"\n{summary(name, mine)}", flush=True)
            progress.step("the end")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    finally:
        if options.json and rows:
            options.json.write_text(json.dumps({"machine": here, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

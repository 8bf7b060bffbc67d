"""How well does intervalq keep its rate on a machine that is quiet, pressed, or under a CPU quota?

Each row runs beside "timer only" under the same condition right before it: what is late there is the machine's
doing. The conditions are made by this command and end with it; README.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from _busy import Question, ask
from _busy_calls import flood, keyed, lone, tasks
from _busy_pacing import far, half, high, pacing
from _conditions import NAMES, Condition, conditions
from _report import machine, words, write
from _run import Progress

QUESTIONS: dict[str, tuple[Callable[[float], Question], float]] = {
    "pacing": (pacing, 10.0),
    "half": (half, 10.0),
    "lone": (lone, 15.0),
    "high": (high, 3.0),
    "tasks": (tasks, 10.0),
    "flood": (flood, 2.0),
    "far": (far, 10.0),
    "keyed": (keyed, 10.0),
}
"""The questions, and the seconds that one row of each takes."""
_QUICK = 1.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=words, default=list(QUESTIONS), help="some of " + ",".join(QUESTIONS))
    parser.add_argument("--conditions", type=words, default=list(NAMES), help="some of " + ",".join(NAMES))
    parser.add_argument("--quota", choices=["cgroup", "stop"],
                        help="only this kind of CPU quota; without it both, as `quota` and `stopped`")  # fmt: skip
    parser.add_argument("--rows", action="append", default=[], metavar="TEXT",
                        help="only rows whose name contains this; may be given several times")  # fmt: skip
    parser.add_argument("--runs", type=int, default=1, help="runs of each row, in turns; tables show medians")
    parser.add_argument("--quick", action="store_true", help="rows of 1 s, to try it out")
    parser.add_argument("--json", type=Path, help="write each run of each row here")
    options = parser.parse_args()
    for name, known in (("only", list(QUESTIONS)), ("conditions", list(NAMES))):
        for word in getattr(options, name):
            if word not in known:
                parser.error(f"--{name}: {word} is none of {', '.join(known)}")
    return options


def _questions(options: argparse.Namespace) -> list[Question]:
    found = []
    for name in options.only:
        make, seconds = QUESTIONS[name]
        question = make(_QUICK if options.quick else seconds)
        pieces = tuple(
            piece
            for piece in question.pieces
            if not options.rows or any(text in piece.name for text in options.rows)
        )
        if pieces:
            found.append(replace(question, pieces=pieces))
    return found


def _introduce(here: dict[str, Any], some: list[Condition], missing: dict[str, str]) -> None:
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    for condition in some:
        print(f"{condition.name}: {condition.means}")
    for name, why in missing.items():
        print(f"{name}: missing: {why}")
    sys.stdout.flush()


def main() -> None:
    """Read the options, run, print the tables, and write the rows."""
    options = _options()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts end what they started
    some, missing = conditions(options.conditions, options.quota)
    questions = _questions(options)
    here = machine()
    _introduce(here, some, missing)
    here["conditions"] = {condition.name: condition.means for condition in some}
    progress = Progress(options.runs * len(some) * sum(len(question.pieces) for question in questions))
    if not progress.total:
        sys.exit("nothing to do: no row or condition of that name; see --help")
    rows: list[dict[str, Any]] = []
    try:
        for question, condition in product(questions, some):
            rows.extend(ask(question, condition, options.runs, progress))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    finally:
        if options.json and rows:
            write(options.json, here, rows)


if __name__ == "__main__":
    main()

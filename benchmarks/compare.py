"""intervalq and its peers on the same work in the same run: how exact, how fast, how soon.

Prints a table for each piece of work as soon as it is done; README.md says what the columns mean. Run it on a
quiet machine, and compare within one run only: the row "timer only" shows what the machine itself did to everybody.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _latency import Latency
from _own import QUICK, Own
from _pacing import Pacing
from _report import machine, words, write
from _run import Progress
from _throughput import Throughput
from peers import PACING

_Question = Pacing | Throughput | Latency | Own
_QUESTIONS: dict[str, Callable[[argparse.Namespace], _Question]] = {
    "pacing": Pacing,
    "throughput": Throughput,
    "latency": Latency,
    **{name: partial(Own, name) for name in QUICK},
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="peers: " + ", ".join(PACING),
    )  # fmt: skip
    parser.add_argument(
        "--only", type=words, default=list(_QUESTIONS), help="some of " + ",".join(_QUESTIONS)
    )
    parser.add_argument("--peers", type=words, default=[], help="only these peers; `intervalq` is one")
    parser.add_argument(
        "--stores", type=words, default=[], help="only these stores, of throughput and latency"
    )
    parser.add_argument("--rates", type=lambda text: [float(word) for word in words(text)], default=[],
                        help="only these rates of pacing")  # fmt: skip
    parser.add_argument("--processes", type=lambda text: [int(word) for word in words(text)], default=[],
                        help="only these numbers of processes, of pacing")  # fmt: skip
    parser.add_argument("--runs", type=int, default=1, help="runs of each row, in turns; tables show medians")
    parser.add_argument("--quick", action="store_true", help="rows of 1 s, to try it out")
    parser.add_argument("--json", type=Path, help="write each run of each row here")
    parser.add_argument("--plot", type=Path, help="draw a PNG here")
    options = parser.parse_args()
    for name in options.only:
        if name not in _QUESTIONS:
            parser.error(f"--only: {name} is none of {', '.join(_QUESTIONS)}")
    return options


def main() -> None:
    """Read the options, run, print, write."""
    options = _options()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts end what they started
    here = machine()
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    questions = [_QUESTIONS[name](options) for name in _QUESTIONS if name in options.only]
    progress = Progress(sum(question.steps for question in questions))
    if not progress.total:
        sys.exit("nothing to do: no peer, rate, number of processes or store of that name; see --help")
    rows: list[dict[str, Any]] = []
    try:
        for question in questions:
            rows += question.rows(progress)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    finally:
        if options.json and rows:
            write(options.json, here, rows)
        if options.plot and rows:
            from _plot import plot  # noqa: PLC0415 - it needs matplotlib

            plot(rows, options.plot)


if __name__ == "__main__":
    main()

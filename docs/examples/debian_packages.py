"""A pipeline on real rows: an API with a limit is asked about each of ten thousand Debian packages.

    python docs/examples/debian_packages.py --kill

The rows come from the package lists of this machine (elsewhere from a made-up list), and include some invalid
ones. The API runs here, counts every call on its own clock, and answers 429 beyond a published number of
calls in a second. The pipeline is one local Spark session with a SQLite file, at 300 calls a second: ten
thousand rows take 34 s plus the start of Spark. With `--kill`, it is killed midway (kill -9), and the same
command continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from debian_packages_api import PackagesAPI
from debian_packages_list import packages

_SPEC: Final = """\
[pipeline]
name = "packages"
output = "output"

[input]
path = "packages.jsonl"
key = "name"

[input.require]
has_version = "version <> ''"

[call]
function = "debian_packages_call:ask"
schema = "status int, megabytes double"
concurrency = 64
retries = 3

[queue]
rate = "{rate}/s"
burst = {burst}
store = "state.db"
"""

_MARGIN: Final = 1.2
"""The API's limit as a multiple of the pace: it is higher because the latency of calls varies."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; the exit code is 1 if a row was called twice without a kill or a call was rejected."""
    given = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="intervalq-packages-") as temporary:
        folder = Path(given.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        burst = max(1, given.rate // 50)
        with PackagesAPI(limit=int(given.rate * _MARGIN)) as api:
            source = _write(folder, api.url, given.rows)
            (folder / "packages.toml").write_text(
                _SPEC.format(rate=given.rate, burst=burst), encoding="utf-8"
            )
            _say(f"{given.rows} rows from {source}; {given.rate} calls/s at up to {burst} at once")
            if given.kill:
                _killed(folder, api, given.rows // 3)
            _say(f"$ intervalq pipeline run {folder / 'packages.toml'}")
            code = _started(folder).wait()
            report = api.report()
        return _verdict(report, _results(folder), code, killed=given.kill)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Ask an API about each of 10,000 packages, by a pipeline on Spark; takes about a minute.",
    )
    parser.add_argument("--rows", type=int, default=10_000, metavar="N", help="how many packages (10000)")
    parser.add_argument("--rate", type=int, default=300, metavar="N", help="calls a second (300)")
    parser.add_argument("--kill", action="store_true", help="kill -9 it after a third, and run it again")
    parser.add_argument("--folder", help="where to work; by default a new one, removed afterwards")
    return parser


def _write(folder: Path, url: str, rows: int) -> str:
    """The requests, with a few that a pipeline has to distinguish from the others."""
    found, source = packages(rows)
    lines = [
        json.dumps({**one, "url": f"{url}/packages/{quote(one['name'])}?size={one.get('size') or 0}"})
        for one in found
    ]
    lines += [lines[0], json.dumps({"version": "1", "url": url}), json.dumps({"name": "none", "version": ""})]
    (folder / "packages.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return source


def _started(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "intervalq", "pipeline", "run", str(folder / "packages.toml")]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(  # noqa: S603 - this interpreter, this package
        command, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}
    )


def _killed(folder: Path, api: PackagesAPI, calls: int) -> None:
    """Begin a run and kill it."""
    _say(f"$ intervalq pipeline run {folder / 'packages.toml'}  # to be killed after {calls} calls")
    run = _started(folder)
    while len(api.arrivals) < calls and run.poll() is None:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.kill(run.pid, signal.SIGKILL)
    run.wait()
    _say(f"killed after {len(api.arrivals)} calls")


def _results(folder: Path) -> int:
    import pyarrow.dataset as ds  # noqa: PLC0415 - an extra

    return int(ds.dataset(folder / "output" / "results", format="parquet").count_rows())


def _verdict(report: dict[str, Any], results: int, code: int, *, killed: bool) -> int:
    _say(
        f"The API counted {report['calls']} calls for {report['rows']} rows, {report['repeated']} of them "
        f"repeated, and refused {report['refused']}."
    )
    gaps = [f"{report[name] * 1e3:.2f} ms ({name[4:]})" for name in ("gap_p1", "gap_p50", "gap_max")]
    _say(
        f"{results} results; {report['rate']:.1f} calls/s over all, {report['most_in_a_second']} at "
        f"most in any second; gaps {', '.join(gaps)}."
    )
    _say(f"The pipeline's exit code was {code}: two rows can't be called, and are among the rejects.")
    wrong = report["refused"] or results != report["rows"] or (report["repeated"] and not killed)
    return int(bool(wrong))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

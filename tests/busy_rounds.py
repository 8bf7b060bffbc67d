"""Repeats the tests that depend most on time beside busy loops, and counts how often each passes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
TESTS = (
    "test_processes.py::test_a_killed_process_costs_a_few_slots_and_nothing_else[redis]",
    "test_keyed_processes.py::test_both_rates_and_shares_are_kept_while_processes_are_killed[redis]",
    "test_busy_machine.py::test_a_lone_caller_begins_in_a_process_that_is_stopped_for_most_of_the_time",
    "faults/test_server_nats.py::test_acknowledgements_get_lost",
    "faults/test_token_storm.py::test_never_two_workers_on_a_key_and_none_is_lost",
)
LOOP = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # ends with this process, however that ends


def main() -> int:
    """Run all rounds; the exit code is 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--loops", type=int, default=20, help="how many busy loops run beside the tests")
    given = parser.parse_args()
    passed: Counter[str] = Counter()
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(given.loops)]
    try:
        for number in range(1, given.rounds + 1):
            for test in TESTS:
                began = time.monotonic()
                command = [sys.executable, "-m", "pytest", "-q", "-n", "0", str(HERE / test)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                passed[test] += done.returncode == 0
                took, load = time.monotonic() - began, os.getloadavg()[0]
                print(f"{test}: {passed[test]} of {number}; {took:.0f} s, load {load:.0f}", flush=True)
                if done.returncode:
                    print(done.stdout[-4_000:], flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    for test in TESTS:
        print(f"{passed[test]:4} of {given.rounds}  {test}")
    return int(any(passed[test] < given.rounds for test in TESTS))


if __name__ == "__main__":
    sys.exit(main())

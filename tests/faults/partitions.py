"""Shards that are cut off: each has its own network, and a cable to one Redis that is unplugged for a while.

    python tests/faults/partitions.py --rounds 200

For root on Linux. The networks have no names, so they disappear with their processes, however those end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
import servers
from faults.called import now
from faults.shard_process import die_with_parent
from faults.shards import Shard
from faults.storm import shown
from faults.trial import Trial
from faults.verdict import Verdict

SHARDS: Final = 3
CALLERS: Final = 4
"""The tickets that each shard may hold; some may have been granted before it was cut off."""

OTHERS: Final = 8
"""The number of jobs that each of the others begins while one is cut off: more than its tickets."""


class Cable:
    """Connects the network of a shard, which has `10.9.<number>.2`, to ours, which has `10.9.<number>.1`."""

    def __init__(self, number: int, shard: Shard) -> None:
        self._name = f"iq{number}"
        network = Path(f"/proc/{shard.process.pid}/ns/net")
        own = Path("/proc/self/ns/net").readlink()
        servers.until(lambda: network.readlink() != own)
        _run(
            "ip",
            "link",
            "add",
            self._name,
            "type",
            "veth",
            "peer",
            "name",
            "iq",
            "netns",
            str(shard.process.pid),
        )
        _run("ip", "address", "add", f"10.9.{number}.1/24", "dev", self._name)
        there = ("nsenter", f"--net={network}", "ip")
        _run(*there, "address", "add", f"10.9.{number}.2/24", "dev", "iq")
        _run(*there, "link", "set", "iq", "up")
        self.plug()

    def plug(self) -> None:
        """Plug it in."""
        _run("ip", "link", "set", self._name, "up")

    def pull(self) -> None:
        """Unplug it: nothing gets through, and neither side gets an error."""
        _run("ip", "link", "set", self._name, "down")


def run(rounds: int, seed: int, *, progress: bool) -> Verdict:
    """Cut off one shard after the other; this process must be alone in its network."""
    _run("ip", "link", "set", "lo", "up")
    chance = random.Random(seed)
    server = servers.redis_server(servers.redis_binary(), "--bind", "0.0.0.0", "--protected-mode", "no")
    with servers.running(server), Trial(server.url, callers=CALLERS) as trial:
        shards, cables = [], []
        for number in range(SHARDS):
            url = f"redis://10.9.{number}.1:{server.port}/0"
            shards.append(trial.shards.start(url=url, before=["unshare", "--net"]))
            cables.append(Cable(number, shards[-1]))
        trial.go_on()
        with shown("cut off", rounds if progress else 0) as bar:
            for turn in range(rounds):
                cut = chance.randrange(SHARDS)
                cables[cut].pull()
                pulled = now()
                trial.go_on(OTHERS, of=[shard for shard in shards if shard is not shards[cut]])
                time.sleep(chance.uniform(0, 2))
                trial.last_fault = now()
                begun = [start for start in trial.called.since(pulled) if start.shard == shards[cut].name]
                if len(begun) > CALLERS:
                    trial.shards.wrong.append(
                        f"partition: {len(begun)} jobs began in a shard that was cut off"
                    )
                cables[cut].plug()
                trial.go_on()
                bar(turn + 1)
        return trial.verdict(again=SHARDS)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Enter a new network, run, and print the verdict as JSON; 1: a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if not wanted.inside:
        words = ["unshare", "--net", sys.executable, *sys.argv, "--inside"]
        os.execvp(words[0], words)
    die_with_parent()
    verdict = run(wanted.rounds, wanted.seed, progress=sys.stderr.isatty())
    print(json.dumps({**asdict(verdict), "unexplained": verdict.unexplained}))
    return int(bool(verdict.broken))


if __name__ == "__main__":
    sys.exit(main())

"""How many jobs a second start without an effective limit, beside the raw floor of each store?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from typing import Any

from _fleet import WorkerError
from _judge import medians
from _run import Around, MissingError, Progress, failed, run, undisturbed
from _store import store_of
from _table import Column, table
from peers import Peer, throughput
from peers.base import Work

STORES = ("memory", "file", "sqlite", "redis", "postgres")
_CALLERS = (1, 64, 1_000)


class Throughput:
    """All the rows of the question."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._seconds = 1.0 if options.quick else 2.0
        self._stores = [kind for kind in STORES if not options.stores or kind in options.stores]

    def _peers(self, kind: str) -> list[Peer]:
        wanted = self._options.peers
        return [
            peer
            for name, peer in throughput(kind).items()
            if not wanted or name in wanted or (name.startswith("intervalq") and "intervalq" in wanted)
        ]

    def _sizes(self, kind: str) -> list[tuple[int, int]]:
        processes = (1,) if kind == "memory" else (1, 2)  # memory isn't shared: two would be two queues
        return list(product(processes, _CALLERS))

    @property
    def steps(self) -> int:
        """The number of rows that will be run."""
        return self._options.runs * sum(
            len(self._peers(kind)) * len(self._sizes(kind)) for kind in self._stores
        )

    def rows(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """Run everything, with the contenders in turns, and print a table for each store."""
        for kind in self._stores:
            found: list[dict[str, Any]] = []
            for number, (processes, callers), peer in product(
                range(self._options.runs), self._sizes(kind), self._peers(kind)
            ):
                progress.step(f"throughput: {kind}, {processes} x {callers} callers: {peer.label}")
                head = {"question": "throughput", "store": kind, "processes": processes, "callers": callers,
                        "peer": peer.name, "label": peer.label, "settings": peer.settings}  # fmt: skip
                try:
                    row = measure(kind, peer, processes, callers, self._seconds)
                except (MissingError, WorkerError) as error:
                    row = {"missing": failed(error)}
                found.append({**head, **row, "run": number})
            yield from found
            self._print(kind, found)

    def _print(self, kind: str, found: list[dict[str, Any]]) -> None:
        columns = [Column("jobs a second", "label")]
        columns += [
            Column(f"{processes} x {callers}", f"{processes}x{callers}", "{:,.0f}")
            for processes, callers in self._sizes(kind)
        ]
        shown: list[dict[str, object]] = []
        for peer in self._peers(kind):
            line: dict[str, object] = {"label": peer.label}
            for processes, callers in self._sizes(kind):
                mine = [
                    row
                    for row in found
                    if (row["peer"], row["processes"], row["callers"]) == (peer.name, processes, callers)
                    and "missing" not in row
                ]
                line[f"{processes}x{callers}"] = medians(mine)["jobs_per_s"] if mine else None
            shown.append(line)
        print(f"\n== throughput: {kind}; processes x callers in each; {self._seconds:g} s\n")
        print(table(columns, shown))
        for row in found:
            if row.get("given_up", 0) > row.get("jobs", 0) / 10:
                size = f"{row['processes']} x {row['callers']}"
                print(f"{row['label']}, {size}: {row['given_up']:,} slots given up, for {row['jobs']:,} jobs")
        for name, why in sorted({(row["label"], row["missing"]) for row in found if "missing" in row}):
            print(f"{name}: missing: {why}")


def measure(
    kind: str, peer: Peer, processes: int, callers: int, seconds: float, *, around: Around = undisturbed
) -> dict[str, Any]:
    """The figures of one contender."""
    with store_of(kind) as url:
        works = [
            Work(
                task="flood", place=peer.place, url=url, interval=1e-6, processes=processes, index=index,
                callers=callers, settle=0.5, seconds=seconds,
            )
            for index in range(processes)
        ]  # fmt: skip
        found = run(peer, works, meter_url=url if kind == "redis" else None, around=around)
    jobs = sum(result["jobs"] for result in found.results)
    row: dict[str, Any] = {
        "jobs": jobs,
        "jobs_per_s": sum(result["jobs"] / result["seconds"] for result in found.results),
        "client_us": sum(result["cpu"] for result in found.results) / max(1, jobs) * 1e6,
    }
    row |= {
        name: sum(result[name] for result in found.results)
        for name in ("calls", "given_up")
        if all(name in result for result in found.results)
    }
    if found.store:
        row |= found.store["meter"].between(found.store["before"], found.store["after"], jobs)
    return row

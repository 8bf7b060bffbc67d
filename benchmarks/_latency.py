"""How long does one call on an idle queue wait, beside a bare step of the same store right before?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from _fleet import WorkerError
from _judge import medians, quantile
from _run import MissingError, Progress, failed, run
from _store import store_of
from _table import Column, table
from peers import LATENCY_PEERS, PACING, Peer, floor
from peers.base import Work

STORES = ("memory", "file", "sqlite", "redis", "valkey", "postgres")

_COLUMNS = (
    Column("one call, idle", "label"),
    Column("store", "store"),
    Column("wait us p50", "wait_p50", "{:.0f}"),
    Column("p99", "wait_p99", "{:.0f}"),
    Column("bare step us p50", "trip_p50", "{:.0f}"),
    Column("p99", "trip_p99", "{:.0f}"),
    Column("own round trip us p50", "step_p50", "{:.0f}"),
    Column("p99", "step_p99", "{:.0f}"),
    Column("call - round trip p50", "difference", "{:.0f}"),
)


class Latency:
    """All the rows of the question."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._calls = 50 if options.quick else 300
        wanted = options.peers
        stores = [kind for kind in STORES if not options.stores or kind in options.stores]
        self._pairs: list[tuple[str, Peer]] = []
        if not wanted or "intervalq" in wanted:
            self._pairs += [(kind, PACING["intervalq"]) for kind in stores]
        if "redis" in stores:
            self._pairs += [("redis", PACING[name]) for name in LATENCY_PEERS if not wanted or name in wanted]

    @property
    def steps(self) -> int:
        """How many rows will be run."""
        return self._options.runs * len(self._pairs)

    def rows(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """Run everything, and print the table."""
        found = []
        for number in range(self._options.runs):
            for kind, peer in self._pairs:
                progress.step(f"latency: {kind}: {peer.label}")
                row = {**self._row(kind, peer), "run": number}
                found.append(row)
                yield row
        print(f"\n== latency of one call; {self._calls} calls, 30 ms apart, at an interval of 20 ms\n")
        shown = []
        for kind, peer in self._pairs:
            mine = [
                row
                for row in found
                if (row["store"], row["peer"]) == (kind, peer.name) and "missing" not in row
            ]
            if mine:
                shown.append(medians(mine))
        print(table(_COLUMNS, shown))
        for name, kind, why in sorted(
            {(r["label"], r["store"], r["missing"]) for r in found if "missing" in r}
        ):
            print(f"{name} on {kind}: missing: {why}")

    def _row(self, kind: str, peer: Peer) -> dict[str, Any]:
        head = {"question": "latency", "store": kind, "peer": peer.name, "label": peer.label}
        with store_of(kind) as url:
            work = Work(
                task="latency", place=peer.place, url=url, interval=0.02, processes=1, index=0, callers=1, settle=0,
                seconds=self._calls * 0.07, calls=self._calls,
                floor=floor("redis" if kind == "valkey" else kind).place, floor_url=url,
            )  # fmt: skip
            try:
                [result] = run(peer, [work]).results
            except (MissingError, WorkerError) as error:
                return {**head, "missing": failed(error)}
        row = {
            f"{name}_p{percent}": quantile(result[f"{name}s"], percent / 100)
            for name in ("wait", "trip", "step")
            for percent in (50, 99)
            if result.get(f"{name}s")
        }
        return {**head, **row, "difference": row["wait_p50"] - row.get("step_p50", row["trip_p50"])}

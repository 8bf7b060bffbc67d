"""One NATS, or a cluster of three, whose leaders may be killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats

import servers
from intervalq_stores.nats._task.message import STREAM
from servers import Server


class Cluster:
    """Servers that hold the stream of tasks; if there are several, each is a replica."""

    def __init__(self, nodes: dict[str, Server]) -> None:
        self.nodes = nodes
        self._leader = next(iter(nodes))
        self.url = "nats://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes.values())
        if len(nodes) > 1:
            self.url += f"?replicas={len(nodes)}"

    def leader(self) -> Server:
        """The server that leads the stream of tasks; if that isn't known, any."""
        if len(self.nodes) > 1:
            self._leader = led_by([node.url for node in self.nodes.values()]) or self._leader
        return self.nodes[self._leader]


def led_by(urls: list[str]) -> str | None:
    """The name of the node that leads the stream."""

    async def ask() -> str | None:
        client = await nats.connect(urls, connect_timeout=2, max_reconnect_attempts=3)
        try:
            answer = await client.request(f"$JS.API.STREAM.INFO.{STREAM}", b"{}", timeout=5)
            leader = json.loads(answer.data).get("cluster", {}).get("leader")
            return leader if isinstance(leader, str) else None
        finally:
            await client.close()

    try:
        return asyncio.run(ask())
    except Exception:  # noqa: BLE001 - there may be none at the moment
        return None


@contextmanager
def clustered(folder: Path, nodes: int, sync: str, *, later: int = 0) -> Iterator[Cluster]:
    """This number of nodes, while the context is open; the last ones are unknown until they are started."""
    config = folder / "nats.conf"
    config.write_text(f"jetstream {{ sync_interval: {sync} }}\n")
    with ExitStack() as stack:
        if nodes == 1:
            yield Cluster(
                {"n0": stack.enter_context(servers.running(servers.nats_server("-c", str(config))))}
            )
            return
        ports = [servers.free_port() for _ in range(nodes)]
        routes = [f"nats://127.0.0.1:{port}" for port in ports]
        made: dict[str, Server] = {}
        for number, port in enumerate(ports):
            known = ",".join(routes[: max(number + 1, nodes - later)])
            cluster = ("--cluster", f"nats://127.0.0.1:{port}", "--cluster_name", "storm", "--routes", known)
            node = servers.nats_server("-c", str(config), "-n", f"n{number}", *cluster)
            stack.callback(node.close)
            made[f"n{number}"] = node
        with ThreadPoolExecutor(nodes) as pool:  # none answers before most of them run
            list(pool.map(Server.start, list(made.values())[: nodes - later]))
        yield Cluster(made)

"""A cluster of NATS that can't place a stream: calls wait for a while, and then say so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

import servers
from faults.nats_cluster import Cluster, clustered
from faults.needs import need_server
from intervalq import errors
from intervalq.tasks import Tasks
from intervalq_stores.nats import _server as nats_server

NOBODY_LEADS = 10008
NO_PEERS = 10005


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        with clustered(tmp_path, 3, "2m") as cluster:
            yield cluster
    except servers.NotInstalledError as error:
        need_server(error)


@asynccontextmanager
async def asked(url: str) -> AsyncIterator[tuple[Client, list[Msg]]]:
    """A plain client, and the streams that it asks for."""
    client = await nats.connect(url)
    found: list[Msg] = []

    async def came(message: Msg) -> None:
        found.append(message)

    await client.subscribe("$JS.API.STREAM.CREATE.>", cb=came)
    await client.flush()
    yield client, found
    await client.close()


async def until_nobody_leads(client: Client) -> None:
    with anyio.fail_after(90):
        while True:
            try:
                answer = await client.request("$JS.API.STREAM.NAMES", timeout=1)
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                continue
            if json.loads(answer.data).get("error", {}).get("err_code") == NOBODY_LEADS:
                return


async def test_a_leader_is_waited_for_and_a_place_that_there_is_not_is_told_of(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, comes, goes = cluster.nodes.values()
    async with asked(stays.url) as (client, asks):
        async with Tasks(f"{stays.url}?tags=nowhere") as tasks:
            with pytest.raises(errors.StoreUnavailable, match="placement excludes all"):
                await tasks.insert("q", 1)
        assert len(asks) > 2
        for node in (comes, goes):
            await anyio.to_thread.run_sync(node.stop)
        await until_nobody_leads(client)
        asks.clear()
        monkeypatch.setattr(nats_server, "WITHIN", 60.0)

        async def insert(tasks: Tasks) -> None:
            done = False
            while not done:
                with suppress(errors.StoreTimeout):  # a request during an election may get no answer
                    await tasks.insert("q", 1)
                    done = True

        async with Tasks(stays.url) as tasks, anyio.create_task_group() as group:
            group.start_soon(insert, tasks)
            with anyio.fail_after(90):
                while len(asks) < 3:
                    await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(comes.start)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, and one that has never been there."""
    try:
        with clustered(tmp_path, 3, "2m", later=1) as cluster:
            yield cluster
    except servers.NotInstalledError as error:
        need_server(error)


async def test_three_replicas_wait_for_the_third_node(
    growing: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it comes, the server has no peers for the streams (10005). A node that is only down is a peer."""
    first, _, third = growing.nodes.values()
    url = f"{first.url}?replicas=3"
    async with asked(first.url) as (client, asks), Tasks(url) as tasks:
        with anyio.fail_after(90):
            while await refusal(client) != NO_PEERS:
                await anyio.sleep(0.05)
        asks.clear()
        monkeypatch.setattr(nats_server, "WITHIN", 90.0)
        async with anyio.create_task_group() as group:
            group.start_soon(tasks.insert, "q", 1)
            with anyio.fail_after(90):
                while len(asks) < 3:
                    await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(third.start)
        await anyio.to_thread.run_sync(third.stop)
        with anyio.fail_after(90):
            while await refusal(client):
                await anyio.sleep(0.05)
            found: list[object] = []
            while not found:
                with suppress(errors.StoreUnavailable):  # while the node that left is replaced as the leader
                    found = [task.value for task in await tasks.tasks("q")]
        assert found == [1]


async def refusal(client: Client) -> int:
    """The error code of a request for a stream of three; 0: it was created, -1: no answer."""
    body = {"name": "OTHER", "subjects": ["other"], "num_replicas": 3}
    try:
        answer = await client.request("$JS.API.STREAM.CREATE.OTHER", json.dumps(body).encode(), timeout=1)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
        return -1
    return int(json.loads(answer.data).get("error", {}).get("err_code", 0))

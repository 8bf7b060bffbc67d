"""A service in this process, over a fresh store of each kind, and clients that speak its protocols."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import grpc.aio
import pytest

from intervalq.service import Addresses, serve
from service.grpc_client import GrpcClient
from stores.kinds import url_of


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Servers and drivers need asyncio."""
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"/q/{secrets.token_hex(6)}"


@pytest.fixture
async def service(store_url: str) -> AsyncIterator[Addresses]:
    """The addresses of a running service."""
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(store_url, grpc="127.0.0.1:0", http="127.0.0.1:0", grace=1, task_status=task_status)

        yield await group.start(run)
        group.cancel_scope.cancel()


@pytest.fixture
async def client(service: Addresses) -> AsyncIterator[GrpcClient]:
    """A client over gRPC."""
    assert service.grpc is not None
    async with grpc.aio.insecure_channel(service.grpc) as channel:
        yield GrpcClient(channel, f"client-{secrets.token_hex(4)}")

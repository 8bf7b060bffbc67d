"""A service in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from intervalq.service import Addresses, serve
from intervalq.tasks.store import TaskStore


@asynccontextmanager
async def served(store: str | TaskStore, **options: Any) -> AsyncIterator[Addresses]:
    """The addresses of a service."""
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            given = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "grace": 5, **options}
            await serve(store, task_status=task_status, **given)

        yield await group.start(run)
        group.cancel_scope.cancel()


@asynccontextmanager
async def serving(store: str | TaskStore, **options: Any) -> AsyncIterator[str]:
    """The address of a service over gRPC alone."""
    async with served(store, **{"http": None, **options}) as addresses:
        assert addresses.grpc is not None
        yield addresses.grpc

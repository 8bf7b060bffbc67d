"""A service in this process, over gRPC alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from intervalq.service import Addresses, serve
from intervalq.tasks.store import TaskStore


@asynccontextmanager
async def serving(store: str | TaskStore, **options: Any) -> AsyncIterator[str]:
    """The address of a service."""
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            given = {"grpc": "127.0.0.1:0", "http": None, "grace": 5, **options}
            await serve(store, task_status=task_status, **given)

        addresses = await group.start(run)
        assert addresses.grpc is not None
        yield addresses.grpc
        group.cancel_scope.cancel()

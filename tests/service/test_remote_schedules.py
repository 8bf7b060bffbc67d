"""Schedules of processes that reach their store through a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from intervalq.schedules import Schedules
from intervalq_stores.remote.queues import RemoteStore
from service.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_they_run_over_a_store_without_wake_ups(tmp_path: Path) -> None:
    async with serving(str(tmp_path / "app.db")) as address, anyio.create_task_group() as group:
        schedules, fired = Schedules(f"intervalq://{address}"), anyio.Event()

        @schedules.every("20ms")
        async def often() -> None:
            fired.set()

        group.start_soon(schedules.run)
        with anyio.fail_after(20):
            await fired.wait()
        group.cancel_scope.cancel()


async def test_they_go_on_after_a_restart_of_the_service_and_subscribe_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intervalq.schedules._runner._AGAIN", 0.01)
    subscribed = anyio.Event()
    changes = RemoteStore._schedule_changes

    @asynccontextmanager
    async def noted(self: RemoteStore) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async with changes(self) as changed:
            subscribed.set()
            yield changed

    monkeypatch.setattr(RemoteStore, "_schedule_changes", noted)
    async with anyio.create_task_group() as group:
        async with serving(f"memory://{tmp_path}") as address:
            schedules = Schedules(f"intervalq://{address}")

            @schedules.every("1h")
            async def seldom() -> None:
                pass

            group.start_soon(schedules.run)
            with anyio.fail_after(20):
                await subscribed.wait()
        subscribed = anyio.Event()
        async with serving(f"memory://{tmp_path}", grpc=address):
            with anyio.fail_after(20):
                await subscribed.wait()
            group.cancel_scope.cancel()

"""A plain client of a NATS that sees the requests for tasks, and can ask the server."""

from __future__ import annotations

import json
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from nats.aio.msg import Msg

from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._task.message import STREAM

PATIENCE = 30


class PlainClient:
    """A plain client that sees the requests for tasks of one queue, and can ask the server."""

    def __init__(self, client: Any, queue: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self._client = client
        self._heard: Any = None
        self.consumer = f"{STREAM}.{encoded(queue)}"

    async def listen(self) -> None:
        """Record them from now on."""

        async def hear(message: Msg) -> None:
            self.requests.append(json.loads(message.data))

        self._heard = await self._client.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{self.consumer}", cb=hear)
        await self._client.flush()

    async def ask(self, subject: str, body: object = None) -> Any:
        answer = await self._client.request(
            f"$JS.API.{subject}", json.dumps(body or {}).encode(), timeout=PATIENCE
        )
        return json.loads(answer.data)

    async def flush(self) -> None:
        """Wait until the server has read everything, and all that it sent before is recorded."""
        await self._client.flush()
        while self._heard is not None and self._heard.pending_msgs:
            await checkpoint()

    async def waiting(self) -> int:
        """How many requests wait at the server."""
        answer = await self.ask(f"CONSUMER.INFO.{self.consumer}")
        return int(answer.get("num_waiting", -1))

    async def until_waiting(self, number: int) -> None:
        with anyio.fail_after(PATIENCE):
            while await self.waiting() != number:
                await checkpoint()

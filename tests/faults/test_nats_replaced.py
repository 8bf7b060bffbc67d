"""Replaced messages come back after a restart of nats-server: a reproduction with nats-py alone.

Seen with nats-server 2.15.1, file storage, one replica, default `sync_interval` and `always` alike.

A stream has `max_msgs_per_subject: 1` and `discard: old`. Message A is replaced by B on the same subject, by
that limit. Then B is removed: by `+ACK` (work-queue retention), by `$JS.API.STREAM.MSG.DELETE`, or by its
`Nats-TTL`. The subject is empty. The server is killed with SIGKILL before it writes the stream's index, and
reads its blocks at the next start: A is back, with its old sequence, and is delivered.

The cause: `removeMsgFromBlock` writes a tombstone only if the removal is not `viaLimits`. That is enough
while B is there, since replay enforces the limit again; but the tombstone of B leaves A alone on its subject.
Nothing is lost by the operating system here, so no fsync can help. With several replicas each reads its own
blocks, and comes back with messages that its leader doesn't have.

What is safe: a message that is removed by itself before or after another one was stored (no limit involved),
and one that was replaced by `Nats-Rollup: sub`, which purges with tombstones, also if the rollup expires.
Not safe for what consumers have pending: the purge of a rollup moves their ack floors (see
`test_a_rollup_hides_what_other_workers_have_pending`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import nats
import pytest

from servers import Server

EACH = 20
LAST = "Nats-Expected-Last-Subject-Sequence"
PATIENCE = 30


class Raw:
    """A plain client, and one stream."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def ask(self, verb: str, body: object = None) -> Any:
        answer = await self._client.request(f"$JS.API.{verb}", json.dumps(body or {}).encode())
        reply = json.loads(answer.data)
        assert "error" not in reply, reply
        return reply

    async def make(self, per_subject: int) -> None:
        await self.ask(
            "STREAM.CREATE.S",
            {
                "name": "S",
                "subjects": ["s.>"],
                "retention": "workqueue",
                "max_msgs_per_subject": per_subject,
                "discard": "old",
                "allow_msg_ttl": True,
                "allow_rollup_hdrs": True,
                "allow_atomic": True,
            },
        )
        await self.put("s.keep")  # otherwise the last removal empties the block, which is removed as a whole

    async def put(self, subject: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._client.request(subject, b"x", headers=named or None)
        return int(json.loads(answer.data)["seq"])

    async def both(self, first: str, second: str, **headers: str) -> None:
        """Store two messages in one batch, the first with headers."""
        batch = {"Nats-Batch-Id": secrets.token_hex(8)}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self._client.publish(first, b"x", headers={**batch, **named, "Nats-Batch-Sequence": "1"})
        last = {**batch, "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
        assert b"error" not in (await self._client.request(second, b"x", headers=last)).data

    async def remove(self, sequence: int) -> None:
        await self.ask("STREAM.MSG.DELETE.S", {"seq": sequence, "no_erase": True})

    async def consumer(self, **more: object) -> None:
        config = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.*", **more}
        await self.ask("CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", "config": config})

    async def acknowledge(self, count: int) -> None:
        """All messages except the first."""
        await self.consumer()
        _, *messages = await self.fetch(count + 1)
        for message in messages:
            await message.ack_sync()

    async def fetch(self, count: int) -> list[Any]:
        js = self._client.jetstream()
        pull = await js.pull_subscribe_bind("C", "S")
        found: list[Any] = []
        while len(found) < count:
            found += await pull.fetch(count - len(found), timeout=PATIENCE)
        return found

    async def left(self) -> dict[str, int]:
        answer = await self.ask("STREAM.INFO.S", {"subjects_filter": "s.>"})
        return dict(answer["state"].get("subjects") or {})


@asynccontextmanager
async def raw(server: Server) -> AsyncIterator[Raw]:
    client = await nats.connect(server.url)
    try:
        yield Raw(client)
    finally:
        await client.close()


async def ttl(raw: Raw, subject: str) -> None:
    await raw.put(subject)
    await raw.put(subject, Nats_TTL="1s")


async def replaced_and_deleted(raw: Raw, subject: str) -> None:
    await raw.put(subject)
    await raw.remove(await raw.put(subject))


async def replaced(raw: Raw, subject: str) -> None:
    await raw.put(subject)
    await raw.put(subject)


async def deleted(raw: Raw, subject: str) -> None:
    await raw.remove(await raw.put(subject))


async def put(raw: Raw, subject: str) -> None:
    await raw.put(subject)


async def above_and_both_deleted(raw: Raw, subject: str) -> None:
    first = await raw.put(subject)
    second = await raw.put(subject, **{LAST: str(first)})
    await raw.remove(first)
    await raw.remove(second)


async def rolled_up(raw: Raw, subject: str) -> None:
    first = await raw.put(subject)
    await raw.put(subject, Nats_Rollup="sub", Nats_TTL="1s", **{LAST: str(first)})


async def rolled_up_in_a_batch(raw: Raw, subject: str) -> None:
    first = await raw.put(subject)
    await raw.both(subject, "s.keep", Nats_Rollup="sub", Nats_TTL="1s", **{LAST: str(first)})


@pytest.mark.parametrize(
    ("per_subject", "step", "acknowledged", "back"),
    [
        # With the limit of one message per subject, the replaced message is back.
        (1, ttl, False, EACH),
        (1, replaced_and_deleted, False, EACH),
        (1, replaced, True, EACH),
        # This never replaced anything, or is still in its place.
        (1, deleted, False, 0),
        (1, put, True, 0),
        # Without the limit, which is what the store of tasks uses.
        (-1, above_and_both_deleted, False, 0),
        (-1, rolled_up, False, 0),
        (-1, rolled_up_in_a_batch, False, 0),
        (-1, put, True, 0),
    ],
)
@pytest.mark.parametrize("sync", ["2m", "always"])
async def test_what_comes_back_after_a_kill(
    own_nats: Callable[..., Server],
    tmp_path: Any,
    per_subject: int,
    step: Callable[[Raw, str], Awaitable[None]],
    acknowledged: bool,
    back: int,
    sync: str,
) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(f"jetstream {{ sync_interval: {sync} }}\n")
    server = own_nats("-c", str(config))
    async with raw(server) as client:
        await client.make(per_subject)
        for number in range(EACH):
            await step(client, f"s.{number}")
        if acknowledged:
            await client.acknowledge(EACH)
        with anyio.fail_after(PATIENCE):
            while set(await client.left()) != {"s.keep"}:
                await anyio.sleep(0.05)
    await anyio.to_thread.run_sync(server.stop)
    await anyio.to_thread.run_sync(server.start)
    async with raw(server) as client:
        assert len(set(await client.left()) - {"s.keep"}) == back


async def test_a_rollup_hides_what_other_workers_have_pending(own_nats: Callable[..., Server]) -> None:
    """Why tasks that are handed out aren't replaced by rollups.

    Delivery 2 is purged while delivery 1 is pending: the consumer's floor of deliveries becomes 2, and the
    acknowledgement of delivery 3 moves its floor of sequences over message 1, which isn't delivered again.
    """
    async with raw(own_nats()) as client:
        await client.make(-1)
        for number in range(3):
            await client.put(f"s.{number}")
        await client.consumer()
        messages = await client.fetch(4)
        await client.put(messages[1].subject, Nats_Rollup="sub")
        await messages[2].ack_sync()
        info = await client.ask("CONSUMER.INFO.S.C")
        assert info["ack_floor"]["stream_seq"] == 3, "above 1, which is pending"
        assert (await client.left())["s.keep"] == 1, "it is there, and nobody gets it any more"

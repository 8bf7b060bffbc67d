"""Stores at `intervalq://`: what the service refuses, what is unknown after a failure, and who goes on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import grpc
import grpc.aio
import grpc_tools
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc

from intervalq import IntervalQueue
from intervalq._wire import intervalq_v1_pb2 as pb
from intervalq._wire.verbs import MAX_BYTES, VERSION
from intervalq.errors import (
    DependencyError,
    InboxFull,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UnsupportedOperation,
)
from intervalq.rules import Inspect
from intervalq.store import open_store, scheduling
from intervalq.tasks.rules import Begin, Command, Delete, Insert, Modify, Select, Session, Work
from intervalq.tasks.store import Waking, open_task_store
from intervalq_stores.memory.tasks import MemoryTaskStore
from intervalq_stores.remote._connection import Connection
from intervalq_stores.remote._url import Where
from service.serving import serving

A = TypeVar("A")
MESSAGES = Path(pb.__file__)


def put(*ids: str, **fields: Any) -> Modify:
    return Modify(inserts=tuple(Insert("q", "1", id_, **fields) for id_ in ids))


def test_the_messages_are_made_from_the_interface(tmp_path: Path) -> None:
    out = tmp_path / "set"
    folders = MESSAGES.parent, Path(grpc_tools.__file__).parent / "_proto"
    includes = [f"-I{folder}" for folder in folders]
    assert protoc.main(["", *includes, f"--descriptor_set_out={out}", "intervalq_v1.proto"]) == 0
    (made,) = FileDescriptorSet.FromString(out.read_bytes()).file
    kept = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(kept)
    for file in (made, kept):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert made == kept


async def test_what_is_no_step_is_refused_and_the_service_goes_on(tmp_path: Path) -> None:
    async with (
        serving(f"memory://{tmp_path}") as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="intervalq.v1.Store")
        assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        apply = channel.unary_unary(
            "/intervalq.v1.Store/Apply",
            request_serializer=pb.Step.SerializeToString,
            response_deserializer=pb.Result.FromString,
        )
        malformed: list[tuple[int, str, object, str]] = [
            (pb.QUEUES, "q", "x", "not an object"),
            (pb.QUEUES, "q", {"op": "Explode"}, "none of Advance"),
            (pb.QUEUES, "q", {"op": "Advance", "settings": {"interval": 0}}, "settings: 'interval'"),
            (pb.QUEUES, "q", {"op": "Advance", "settings": {"interval": 1, "burst": 0}}, "'burst'"),
            (pb.QUEUES, "q", {"op": "Configure", "limits": [{"most": 1, "window": 0}]}, "'window'"),
            (pb.QUEUES, "q", {"op": "Advance", "costs": [0]}, "too small"),
            (pb.QUEUES, "q", {"op": "Hold", "length": -1}, "too small"),
            (pb.QUEUES, "q", {"op": "Hold", "length": 2**60}, "below 2"),
            (pb.QUEUES, "q", {"op": "Hold", "length": True}, "below 2"),
            (pb.QUEUES, "q", {"op": "Hold", "long": 1}, "no field 'long'"),
            (pb.QUEUES, "no queue", {"op": "Inspect"}, "not a queue name"),
            (pb.TASKS, "", {"op": "Beat"}, "lacks session"),
            (
                pb.TASKS,
                "",
                {"op": "Modify", "inserts": [{"queue": "q ", "json": "1", "id": "i"}]},
                "queue name",
            ),
            (pb.TASKS, "", {"op": "Modify", "inserts": [{"queue": "q", "json": "1", "id": "\n"}]}, "control"),
            (pb.TASKS, "", {"op": "Modify", "inserts": 3}, "not a list"),
            (pb.TASKS, "", {"op": "Modify", "deletes": [{"id": "i", "version": 0}] * 2}, "task twice"),
            (pb.TASKS, "", {"op": "Work", "session": "s", "queues": ["q"], "limit": 1_001}, "at most 1,000"),
            (pb.TASKS, "", {"op": "Select", "limit": -1}, "can't be used"),
            (pb.LEDGERS, "", {"op": "Count"}, "not a ledger"),
            (pb.LEDGERS, "x", {"op": "Look", "limit": 10**9}, "1 to"),
            (pb.SCHEDULES, "", {"op": "SwapSchedule", "name": "../x"}, "not a schedule"),
            (pb.KIND_UNSPECIFIED, "", {"op": "Inspect"}, "not a kind"),
        ]
        for kind, name, command, said in malformed:
            step = pb.Step(version=VERSION, kind=kind, name=name, command=json.dumps(command).encode())  # type: ignore[arg-type]
            with pytest.raises(grpc.aio.AioRpcError, match=said) as error:
                await apply(step)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        for raw in (b"", b"{", b"[" * 100_000, b"\xff", b'{"op":"Inspect"}' * 2):
            with pytest.raises(grpc.aio.AioRpcError, match="not JSON"):
                await apply(pb.Step(version=VERSION, kind=pb.QUEUES, name="q", command=raw))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await apply(pb.Step(version=VERSION, kind=pb.TASKS, command=b" " * (MAX_BYTES + 1)))
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        newer = await apply(pb.Step(version=2, kind=pb.QUEUES, name="q", command=b'{"op":"Inspect"}'))
        assert (newer.failure.kind, "upgrade the service" in newer.failure.message) == (
            "VersionMismatch",
            True,
        )
        known = b'{"record":"other","settings":null,"own_pace":false}'
        step = pb.Step(version=VERSION, kind=pb.QUEUES, name="q:k", command=b'{"op":"Inspect"}', known=known)
        with pytest.raises(grpc.aio.AioRpcError, match="rate of another queue"):
            await apply(step)
        store = open_store(f"intervalq://{address}")
        assert (await store.apply("q", Inspect())).state is None
        await store.aclose()


async def test_errors_of_the_store_are_those_of_its_clients(tmp_path: Path) -> None:
    async with serving(f"memory://{tmp_path}") as address:
        store = open_task_store(f"intervalq://{address}")
        await store.apply(put("a", "b"))
        with pytest.raises(DependencyError) as unmet:
            await store.apply(
                Modify(inserts=(Insert("q", "1", "a"),), deletes=(Delete("b", 3), Delete("c", 0)))
            )
        assert (unmet.value.inserts, {*unmet.value.deletes}) == (("a",), {"b", "c"})
        await store.apply(put("c", key="k"))
        with pytest.raises(InboxFull) as full:
            await store.apply(put("d", key="k", inbox=0))
        assert (full.value.queue, full.value.key, full.value.limit) == ("q", "k", 0)
        for value, said in (("\ud800", "nothing was done"), ("x" * MAX_BYTES, "send fewer")):
            with pytest.raises(StoreError, match=said):
                await store.apply(Modify(inserts=(Insert("q", value, "e"),)))
        await store.aclose()


async def test_no_refusal_names_the_store_of_the_service(tmp_path: Path) -> None:
    async with serving(str(tmp_path / "secret.db")) as address:
        store = open_task_store(f"intervalq://{address}")
        assert isinstance(store, Waking)
        with pytest.raises(UnsupportedOperation, match="sends no wake-ups") as error:
            async with store.wakeups("s"):
                pass
        assert "secret" not in str(error.value)
        await store.aclose()


async def test_a_service_over_tasks_alone_has_nothing_else(tmp_path: Path) -> None:
    async with serving(MemoryTaskStore(f"memory://{tmp_path}")) as address:
        store = open_store(f"intervalq://{address}")
        with pytest.raises(UnsupportedOperation, match="no store of queues"):
            await store.apply("q", Inspect())
        with pytest.raises(UnsupportedOperation, match="no store of queues"):
            await scheduling(store).read_schedules()
        await store.aclose()


class Slow(MemoryTaskStore):
    """A store whose answers come when they are let go; it notes the calls that were cancelled."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.goes_on, self.asked, self.cancelled = anyio.Event(), anyio.Event(), anyio.Event()
        self.is_slow = False

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        answer = await super().apply(command, now)
        if self.is_slow:
            self.asked.set()
            try:
                await self.goes_on.wait()
            except BaseException:
                self.cancelled.set()
                raise
        return answer


async def test_a_client_that_goes_away_cancels_the_step_in_the_store(tmp_path: Path) -> None:
    slow = Slow(f"memory://{tmp_path}")
    async with serving(slow) as address:
        store = open_task_store(f"intervalq://{address}")
        await store.apply(put("a"))
        slow.is_slow = True
        asked = asyncio.ensure_future(store.apply(put("b")))
        await slow.asked.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        with anyio.fail_after(20):
            await slow.cancelled.wait()
        slow.is_slow = False
        assert len(await store.apply(Select(queue="q"))) == 2
        await store.aclose()


async def test_without_an_answer_nobody_knows_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    """The service is cut off after it has done a step: the error says so, and the step was done once.

    There is another service, which is asked only from then on.
    """
    slow = Slow(f"memory://{tmp_path}")
    failed: list[StoreTimeout] = []
    async with (
        serving(f"memory://{tmp_path}") as other,
        anyio.create_task_group() as group,
        serving(slow, grace=0) as address,
    ):
        store = open_task_store(f"intervalq://{address},{other}")
        await store.apply(put("a"))
        slow.is_slow = True

        async def insert() -> None:
            with pytest.raises(StoreTimeout, match="unknown whether") as error:
                await store.apply(put("b"))
            failed.append(error.value)

        group.start_soon(insert)
        await slow.asked.wait()
    assert len(failed) == 1
    slow.is_slow = False
    assert sorted(row.id for row in await slow.apply(Select(queue="q"))) == ["a", "b"]
    await store.aclose()


async def test_a_store_that_is_closed_meanwhile_says_so_and_is_opened_again(tmp_path: Path) -> None:
    slow = Slow(f"memory://{tmp_path}")
    async with serving(slow, grace=0) as address:
        store = open_task_store(f"intervalq://{address}")
        slow.is_slow = True

        async def insert() -> None:
            with pytest.raises(StoreTimeout, match="closed meanwhile"):
                await store.apply(put("a"))

        async with anyio.create_task_group() as group:
            group.start_soon(insert)
            await slow.asked.wait()
            await store.aclose()
        slow.is_slow = False
        assert len(await store.apply(Select(queue="q"))) == 1
        await store.aclose()


async def test_the_next_host_is_asked_if_one_can_not_be_reached(tmp_path: Path) -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        async with serving(f"memory://{tmp_path}") as address:
            store = open_task_store(f"intervalq://{nowhere},{address}")
            assert store.url == f"intervalq://{nowhere},{address}"
            await store.apply(put("a"))
            assert len(await store.apply(Select(queue="q"))) == 1
        with pytest.raises(StoreUnavailable, match="no service answers") as error:
            await store.apply(Select(queue="q"))
        assert not isinstance(error.value, StoreTimeout)
        await store.aclose()


async def test_wake_ups_end_with_the_service_and_their_store_is_told(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:
        async with serving(f"memory://{tmp_path}") as address:
            store = open_task_store(f"intervalq://{address}")
            assert isinstance(store, Waking)
            await store.apply(Begin(Session("s", expiry=10**9)))
            ready, ended = anyio.Event(), anyio.Event()

            async def listen() -> None:
                async with store.wakeups("s") as woken:
                    await store.apply(Work("s", queues=("q",), limit=1, idle=True))
                    ready.set()
                    await woken()
                    with anyio.move_on_after(0.01):
                        await woken()  # a wait that is cancelled loses nothing
                    await store.apply(Work("s", queues=("q",), limit=0, idle=True))
                    await store.apply(put("b"))
                    await woken()
                    ended.set()
                    with pytest.raises(StoreUnavailable):
                        await woken()

            group.start_soon(listen)
            await ready.wait()
            await store.apply(put("a"))
            with anyio.fail_after(20):
                await ended.wait()
        await store.aclose()


async def test_tasks_that_are_handed_over_are_heard_of_although_other_wake_ups_wait() -> None:
    """Of wake-ups that hand nothing over, one is enough. A claim of which nobody hears is never worked on."""
    said = [
        b"",
        b"",
        b"",
        b"first",
        b"second",
        b"",
        b"",
        b"third",
    ]  # first: "the service listens"

    class Stream:
        """A stream of a service."""

        async def __aiter__(self) -> AsyncIterator[pb.Wakeup]:
            for handed in said:
                yield pb.Wakeup(handed=handed)
            has_said_all.set()
            await anyio.sleep_forever()

        def cancel(self) -> None:
            """It ends with its task."""

    class Channel:
        """A connection to that service."""

        def unary_stream(self, *_: object, **__: object) -> Callable[..., Stream]:
            return lambda *_, **__: Stream()

    has_said_all = anyio.Event()
    connection = Connection(Where(("host:1",), None, has_tls=False, files={}), "intervalq://host:1")
    connection._channels["host:1"] = Channel()  # type: ignore[assignment]  # as much of one as it needs
    async with connection.listening("TASKS", "session", 5) as woken:
        await has_said_all.wait()
        assert [await woken() for _ in range(5)] == [b"", b"first", b"second", b"", b"third"]


async def test_queues_pause_and_go_on_over_a_service(tmp_path: Path) -> None:
    """Jobs of two handles, one of them directly at the store, are paced by one record."""
    path = f"{tmp_path}/app.db"
    async with (
        serving(path) as address,
        IntervalQueue("q", interval="1ms", store=f"intervalq://{address}") as there,
        IntervalQueue("q", interval="1ms", store=path) as here,
        anyio.create_task_group() as group,
    ):
        begun: list[str] = []

        async def note(who: str) -> None:
            begun.append(who)

        for _ in range(20):
            group.start_soon(there.run, lambda: note("there"))
            group.start_soon(here.run, lambda: note("here"))
        await there.pause()
        assert (await here.inspect()).is_held
        await there.resume()
    assert sorted(begun) == ["here"] * 20 + ["there"] * 20
    store = open_store(path)
    state = (await store.apply("q", Inspect())).state
    assert state is not None
    assert state.current >= 40
    await store.aclose()

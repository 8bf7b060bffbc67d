"""A small client of EntroQ's gRPC service, made from its interface alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value
from google.rpc import status_pb2

from intervalq.service._entroq import entroq_pb2 as pb


class Unmet(Exception):
    """Dependencies of a change that failed: how many of each kind."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(dict(counts))
        self.counts = counts


class GrpcClient:
    """Each method is a verb of the protocol."""

    def __init__(self, channel: grpc.aio.Channel, claimant: str) -> None:
        self.channel, self.claimant = channel, claimant

    def another(self) -> GrpcClient:
        """The same connection, used by another claimant."""
        return GrpcClient(self.channel, f"{self.claimant}-too")

    async def call(self, method: str, request: Any, answer: Any) -> Any:
        verb = self.channel.unary_unary(
            f"/api.EntroQ/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await verb(request, timeout=60)

    async def modify(self, **parts: Any) -> pb.ModifyResponse:
        """Inserts, changes, deletes, depends.

        Raises:
            Unmet: the service says that dependencies failed.
        """
        request = pb.ModifyRequest(claimant_id=self.claimant, **parts)
        try:
            response: pb.ModifyResponse = await self.call("Modify", request, pb.ModifyResponse)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise
            raise Unmet(Counter(pb.ActionType.Name(one.type) for one in details(error))) from error
        return response

    async def insert(self, queue: str, value: Any = None, **more: Any) -> pb.Task:
        made = await self.modify(inserts=[pb.TaskData(queue=queue, value=message(value), **more)])
        (task,) = made.inserted
        return task

    async def try_claim(self, *queues: str, ms: int = 30_000) -> pb.Task | None:
        request = pb.ClaimRequest(claimant_id=self.claimant, queues=queues, duration_ms=ms)
        response = await self.call("TryClaim", request, pb.ClaimResponse)
        return response.task if response.HasField("task") else None

    async def claim(self, *queues: str, ms: int = 30_000, poll_ms: int = 60_000) -> pb.Task:
        request = pb.ClaimRequest(claimant_id=self.claimant, queues=queues, duration_ms=ms, poll_ms=poll_ms)
        response = await self.call("Claim", request, pb.ClaimResponse)
        task: pb.Task = response.task
        return task

    async def tasks(self, queue: str = "", ids: Sequence[str] = (), **more: Any) -> list[pb.Task]:
        request = pb.TasksRequest(queue=queue, task_id=ids, **more)
        return [*(await self.call("Tasks", request, pb.TasksResponse)).tasks]

    async def stats(self, method: str = "QueueStats", **which: Any) -> dict[str, pb.QueueStats]:
        response = await self.call(method, pb.QueuesRequest(**which), pb.QueuesResponse)
        return {one.name: one for one in response.queues}


def details(error: grpc.aio.AioRpcError) -> list[pb.ModifyDep]:
    """What an error says of the parts of a change."""
    status = status_pb2.Status()
    trailing = dict(error.trailing_metadata() or ())
    status.ParseFromString(trailing["grpc-status-details-bin"])
    found = []
    for detail in status.details:
        one = pb.ModifyDep()
        assert detail.Unpack(one)
        found.append(one)
    return found


def message(value: Any) -> Value:
    return json_format.ParseDict(value, Value())


def plain(task: pb.Task) -> Any:
    """A task's value."""
    return json_format.MessageToDict(task.value)


def id_of(task: pb.Task) -> pb.TaskID:
    return pb.TaskID(id=task.id, version=task.version, queue=task.queue)


def changed(task: pb.Task, **new: Any) -> pb.TaskChange:
    """A change of some fields of a task, which is available at once unless `at_ms` says otherwise."""
    same = {"queue": task.queue, "value": task.value, "attempt": task.attempt, "err": task.err}
    return pb.TaskChange(old_id=id_of(task), new_data=pb.TaskData(**{**same, **new}))

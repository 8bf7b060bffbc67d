"""What EntroQ's own tests of tasks and queues check, by its gRPC interface, on each store."""

from __future__ import annotations

import anyio
import grpc
import pytest
from google.protobuf.struct_pb2 import Value

from intervalq.service import Addresses
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.tasks import Tasks
from intervalq.tasks._spec.outcome import dead_queue
from service.grpc_client import GrpcClient, Unmet, changed, id_of, message, plain

pytestmark = pytest.mark.anyio


async def test_tasks_are_inserted_listed_and_claimed(client: GrpcClient, queue: str) -> None:
    now = (await client.call("Time", pb.TimeRequest(), pb.TimeResponse)).time_ms
    made = await client.modify(
        inserts=[
            pb.TaskData(queue=queue, value=message({"n": [1, 2.5, None, "x"]})),
            pb.TaskData(queue=queue, value=message("later"), at_ms=now + 3_600_000),
        ]
    )
    first, later = made.inserted
    assert not made.changed
    assert [(one.queue, one.version, one.claims) for one in (first, later)] == [(queue, 0, 0)] * 2
    assert {one.claimant_id for one in (first, later)} == {client.claimant}
    assert later.at_ms == now + 3_600_000
    assert (await client.stats("Queues", match_prefix=[queue]))[queue].num_tasks == 2
    assert sorted(one.id for one in await client.tasks(queue)) == sorted([first.id, later.id])
    assert {one.claimant_id for one in await client.tasks(queue)} == {client.claimant}

    claimed = await client.try_claim(queue, ms=5_000)
    assert claimed is not None
    assert (claimed.id, claimed.version, claimed.claims) == (first.id, 1, 1)
    assert claimed.claimant_id == client.claimant
    assert claimed.at_ms > claimed.modified_ms
    assert plain(claimed) == {"n": [1, 2.5, None, "x"]}
    assert await client.try_claim(queue) is None
    await client.modify(deletes=[id_of(claimed)])
    assert [one.id for one in await client.tasks(queue)] == [later.id]


async def test_a_change_moves_a_task_and_frees_it(client: GrpcClient, queue: str) -> None:
    task = await client.insert(queue, 1, attempt=3, err="odd")
    (moved,) = (await client.modify(changes=[changed(task, queue=f"{queue}/out")])).changed
    assert (moved.queue, moved.version, moved.claimant_id) == (f"{queue}/out", 1, "")
    assert (plain(moved), moved.attempt, moved.err) == (1, 3, "odd")


async def test_an_id_is_taken_once(client: GrpcClient, queue: str) -> None:
    task = await client.insert(queue, id=f"own-{queue}")
    assert task.id == f"own-{queue}"
    for other in (queue, f"{queue}/other"):
        with pytest.raises(Unmet) as unmet:
            await client.insert(other, id=task.id)
        assert unmet.value.counts == {"DETAIL": 1, "INSERT": 1}
    assert len(await client.tasks(ids=[task.id])) == 1


async def test_tasks_are_found_by_ids_in_their_order(client: GrpcClient, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(4)]
    tasks = [pb.TaskData(queue=f"{queue}/{name[-1]}", id=name, value=message(name)) for name in names]
    await client.modify(inserts=tasks)
    found = await client.tasks(ids=[names[3], names[1]])
    assert [(one.id, plain(one)) for one in found] == [(names[3], names[3]), (names[1], names[1])]
    bare = await client.tasks(f"{queue}/2", omit_values=True)
    assert [(one.id, one.HasField("value")) for one in bare] == [(names[2], False)]
    stream = client.channel.unary_stream(
        "/api.EntroQ/StreamTasks",
        request_serializer=pb.TasksRequest.SerializeToString,
        response_deserializer=pb.TasksResponse.FromString,
    )
    parts = [part async for part in stream(pb.TasksRequest(task_id=names))]
    assert [[one.id for one in part.tasks] for part in parts] == [[name] for name in names]


async def test_what_a_change_needs_is_checked_as_a_whole(client: GrpcClient, queue: str) -> None:
    task = await client.insert(queue)
    stale = pb.TaskID(id=task.id, version=7)
    gone = pb.TaskID(id="nowhere")
    with pytest.raises(Unmet) as unmet:
        await client.modify(
            deletes=[gone], depends=[stale], inserts=[pb.TaskData(queue=queue, id=f"{queue}-new")]
        )
    assert unmet.value.counts == {"DETAIL": 1, "DELETE": 1, "DEPEND": 1}
    assert [one.id for one in await client.tasks(queue)] == [task.id]


async def test_a_claim_keeps_others_away_until_it_is_given_back(client: GrpcClient, queue: str) -> None:
    await client.insert(queue)
    mine = await client.try_claim(queue)
    assert mine is not None
    other = client.another()
    with pytest.raises(Unmet) as unmet:
        await other.modify(deletes=[id_of(mine)])
    assert unmet.value.counts == {"DETAIL": 1, "CLAIM": 1}
    (renewed,) = (await client.modify(changes=[changed(mine, at_ms=mine.at_ms + 60_000)])).changed
    assert (renewed.claimant_id, renewed.claims, renewed.version) == (client.claimant, 1, mine.version + 1)
    assert abs(renewed.at_ms - mine.at_ms - 60_000) < 10_000
    assert await other.try_claim(queue) is None
    (free,) = (await client.modify(changes=[changed(renewed)])).changed
    assert free.claimant_id == ""
    again = await other.try_claim(queue)
    assert again is not None
    assert (again.claims, again.claimant_id) == (2, other.claimant)


async def test_a_worker_defers_a_task_that_nobody_has(client: GrpcClient, queue: str) -> None:
    task = await client.insert(queue)
    (deferred,) = (await client.modify(changes=[changed(task, at_ms=task.at_ms + 3_600_000)])).changed
    assert abs(deferred.at_ms - task.at_ms - 3_600_000) < 10_000
    assert await client.try_claim(queue) is None


async def test_a_claim_waits_and_is_woken_by_an_insert(client: GrpcClient, queue: str) -> None:
    """Twenty claimants wait for two queues; each task is given to one of them."""
    got: list[pb.Task] = []
    others = [GrpcClient(client.channel, f"{client.claimant}-{number}") for number in range(20)]
    async with anyio.create_task_group() as group:

        async def wait(one: GrpcClient) -> None:
            got.append(await one.claim(queue, f"{queue}/b"))

        for one in others:
            group.start_soon(wait, one)
        for number in range(20):
            await client.insert(f"{queue}/b" if number % 2 else queue, number)
    assert sorted(plain(one) for one in got) == list(range(20))
    assert len({one.claimant_id for one in got}) == 20


async def test_the_numbers_of_queues(client: GrpcClient, queue: str) -> None:
    for name, count in (("a", 2), ("b=1", 3)):
        await client.modify(inserts=[pb.TaskData(queue=f"{queue}/{name}") for _ in range(count)])
    assert await client.try_claim(f"{queue}/b=1") is not None
    stats = await client.stats(match_prefix=[queue])
    shown = {
        name.rpartition("/")[2]: (one.num_tasks, one.num_claimed, one.num_available, one.max_claims)
        for name, one in stats.items()
    }
    assert shown == {"a": (2, 0, 2, 0), "b=1": (3, 1, 2, 1)}
    assert [*await client.stats(match_exact=[f"{queue}/a", f"{queue}/none"])] == [f"{queue}/a"]
    assert len(await client.stats(match_prefix=[queue], limit=1)) == 1


async def test_what_no_store_can_do_is_refused_by_name(client: GrpcClient, queue: str) -> None:
    task = await client.insert(queue)
    bad = {
        "queue": pb.ModifyRequest(inserts=[pb.TaskData(queue="no  queue")]),
        "twice": pb.ModifyRequest(deletes=[id_of(task)], depends=[id_of(task)]),
        "attempt=-1": pb.ModifyRequest(inserts=[pb.TaskData(queue=queue, attempt=-1)]),
        "control characters": pb.ModifyRequest(claimant_id="a\n"),
        "by_ms": pb.ModifyRequest(inserts=[pb.TaskData(queue=queue, by_ms=2**63 - 1)]),
        "at_ms": pb.ModifyRequest(changes=[changed(task, at_ms=2**60)]),
    }
    for said, request in bad.items():
        with pytest.raises(grpc.aio.AioRpcError, match=said) as refused:
            await client.call("Modify", request, pb.ModifyResponse)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for value in (float("inf"), float("nan")):
        odd = pb.TaskData(queue=queue, value=Value(number_value=value))
        with pytest.raises(grpc.aio.AioRpcError, match="must be JSON"):
            await client.call("Modify", pb.ModifyRequest(inserts=[odd]), pb.ModifyResponse)
    too_many = [f"{queue}/{number}" for number in range(101)]
    with pytest.raises(grpc.aio.AioRpcError, match="waits for at most 100 queues"):
        await client.claim(*too_many)
    with pytest.raises(grpc.aio.AioRpcError, match="control characters"):
        await client.stats(match_prefix=["a\0"])
    many = [pb.TaskID(id=f"{queue}-{number}") for number in range(900)]
    with pytest.raises(Unmet) as unmet:  # of which the error names a part
        await client.modify(deletes=many)
    assert unmet.value.counts["DELETE"] > 20
    for claim in (pb.ClaimRequest(claimant_id="me"), pb.ClaimRequest(queues=[queue])):
        with pytest.raises(grpc.aio.AioRpcError, match="a claim needs"):
            await client.call("TryClaim", claim, pb.ClaimResponse)


async def test_workers_of_the_store_and_clients_of_the_service_share_queues(
    service: Addresses, client: GrpcClient, store_url: str, queue: str
) -> None:
    """Plain tasks too, which a store hands out in ranges."""
    async with Tasks(store_url) as tasks:
        await tasks.put(queue, [{"n": number} for number in range(3)])
        seen = []
        while (claimed := await client.try_claim(queue)) is not None:
            seen.append(plain(claimed)["n"])
            await client.modify(deletes=[id_of(claimed)])
        assert sorted(seen) == [0, 1, 2]
        await client.insert(queue, {"from": "entroq"})
        claim = await tasks.claim(queue)
        assert claim.value == {"from": "entroq"}
        assert claim.attempt == 1
        await claim.ack()
    assert await client.stats(match_exact=[queue]) == {}


async def test_what_the_protocol_can_not_carry_is_put_away(
    client: GrpcClient, store_url: str, queue: str
) -> None:
    """A value that is nested deeper than messages may be, and a number that is too large for them."""
    deep: object = 1
    for _ in range(60):
        deep = [deep]
    async with Tasks(store_url) as tasks:
        for value in (deep, 10**400):
            await tasks.insert(queue, value)
        assert [one.HasField("value") for one in await client.tasks(queue)] == [False, False]
        await client.insert(queue, "plain")
        task = await client.try_claim(queue)
        assert task is not None
        assert plain(task) == "plain"
        assert await client.try_claim(queue) is None
        assert {one.name: one.size for one in await tasks.queues()}[dead_queue(queue)] == 2


async def test_a_message_of_very_many_values_is_refused_before_it_is_read_further(
    client: GrpcClient, queue: str
) -> None:
    data = pb.TaskData(queue=queue, value=message([None] * 50_000))
    with pytest.raises(grpc.aio.AioRpcError, match="at most 200,000 values") as refused:
        await client.modify(inserts=[data] * 5)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert await client.tasks(queue) == []

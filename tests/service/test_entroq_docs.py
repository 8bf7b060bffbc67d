"""EntroQ's docs by its gRPC interface, on each store: what its own tests of docs check, and more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import grpc
import pytest
from google.protobuf import json_format

from intervalq.errors import InvalidName, InvalidTask
from intervalq.service import Addresses
from intervalq.service._access import Anybody
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq import namespaces
from intervalq.service._entroq.docs import queue_of, row_id
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._refusal import Refusal
from intervalq.store import wall_clock
from intervalq.tasks import Tasks
from intervalq.tasks.rules import (
    Begin,
    Cancel,
    Change,
    Command,
    Delete,
    Failed,
    Finished,
    Insert,
    Modify,
    Range,
    Session,
    Work,
)
from intervalq.tasks.store import open_task_store
from service.grpc_client import GrpcClient, Unmet, changed, details, id_of, message, plain

pytestmark = pytest.mark.anyio


async def put(client: GrpcClient, namespace: str, *docs: dict[str, Any]) -> list[pb.Doc]:
    data = [
        pb.DocData(namespace=namespace, **{**one, "content": message(one.get("content"))}) for one in docs
    ]
    return [*(await client.modify(doc_inserts=data)).inserted_docs]


async def listed(client: GrpcClient, namespace: str, **query: Any) -> list[pb.Doc]:
    request = pb.DocsRequest(query=pb.DocQuery(namespace=namespace, **query))
    return [*(await client.call("Docs", request, pb.DocsResponse)).docs]


async def claim(client: GrpcClient, namespace: str, key: str, ms: int = 30_000) -> list[pb.Doc]:
    query = pb.DocClaim(namespace=namespace, claimant=client.claimant, key=key, duration_ms=ms)
    request = pb.ClaimDocsRequest(claim_query=query)
    return [*(await client.call("ClaimDocs", request, pb.ClaimDocsResponse)).docs]


async def numbers(client: GrpcClient, **which: Any) -> dict[str, tuple[int, int]]:
    response = await client.call("NamespaceStats", pb.NamespacesRequest(**which), pb.NamespacesResponse)
    return {one.name: (one.num_docs, one.num_claimed) for one in response.namespaces}


def sorts(docs: Sequence[pb.Doc]) -> list[str]:
    """By what docs are sorted."""
    return [one.key + one.secondary_key for one in docs]


def content(doc: pb.Doc) -> Any:
    return json_format.MessageToDict(doc.content)


def name_of(doc: pb.Doc) -> pb.DocID:
    return pb.DocID(namespace=doc.namespace, id=doc.id, version=doc.version)


def edited(doc: pb.Doc, value: Any, **new: Any) -> pb.DocChange:
    return pb.DocChange(old_id=name_of(doc), new_data=pb.DocData(content=message(value), **new))


async def test_a_doc_is_inserted_changed_and_deleted(client: GrpcClient, queue: str) -> None:
    (doc,) = await put(client, queue, {"id": "one", "key": "k", "secondary_key": "s", "content": {"n": 1}})
    assert (doc.namespace, doc.id, doc.key, doc.secondary_key) == (queue, "one", "k", "s")
    assert (doc.version, doc.claimant, content(doc)) == (0, "", {"n": 1})
    # A doc keeps its keys, whatever a change says of them.
    (after,) = (await client.modify(doc_changes=[edited(doc, [2], key="other")])).changed_docs
    assert (after.version, after.claimant, content(after), after.key, after.secondary_key) == (
        *(1, "", [2]),
        *("k", "s"),
    )
    assert after.created_ms == doc.created_ms
    with pytest.raises(Unmet) as unmet:
        await client.modify(doc_changes=[edited(doc, "stale")])
    assert unmet.value.counts == {"DETAIL": 1, "CHANGE": 1}
    assert await listed(client, queue) == [after]
    await client.modify(doc_deletes=[name_of(after)])
    assert await listed(client, queue) == []
    assert await numbers(client, match_exact=[queue]) == {}


async def test_tasks_and_docs_change_in_one_step(client: GrpcClient, queue: str) -> None:
    data = pb.DocData(namespace=queue, id="state", content=message("begun"))
    made = await client.modify(inserts=[pb.TaskData(queue=queue, id=f"{queue}-1")], doc_inserts=[data])
    (task,), (doc,) = made.inserted, made.inserted_docs
    done = await client.modify(
        changes=[changed(task, queue=f"{queue}/done")], doc_changes=[edited(doc, "finished")]
    )
    assert [one.queue for one in done.changed] == [f"{queue}/done"]
    assert [content(one) for one in done.changed_docs] == ["finished"]
    # A stale doc keeps the task where it is, and a stale task the doc as it is.
    with pytest.raises(Unmet):
        await client.modify(deletes=[id_of(done.changed[0])], doc_deletes=[name_of(doc)])
    with pytest.raises(Unmet):
        await client.modify(deletes=[id_of(task)], doc_deletes=[name_of(done.changed_docs[0])])
    assert len(await client.tasks(f"{queue}/done")) == 1
    assert await listed(client, queue) == [*done.changed_docs]


async def test_all_that_can_not_be_done_is_named(client: GrpcClient, queue: str) -> None:
    """Also beside what another claimant has, of which the store itself knows nothing."""
    there, held, free = await put(client, queue, {"id": "there"}, {"id": "held", "key": "h"}, {"id": "free"})
    task = await client.insert(queue)
    await claim(client.another(), queue, "h")
    (held,) = await listed(client, queue, ids=["held"])
    request = pb.ModifyRequest(
        claimant_id=client.claimant,
        deletes=[pb.TaskID(id=task.id, version=7)],
        doc_inserts=[pb.DocData(namespace=queue, id="there"), pb.DocData(namespace=queue, id="new")],
        doc_changes=[edited(held, 1), edited(pb.Doc(namespace=queue, id="gone", version=3), 1)],
        doc_deletes=[pb.DocID(namespace=queue, id="free", version=9)],
        doc_depends=[pb.DocID(namespace=f"{queue}/other", id="there")],
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.call("Modify", request, pb.ModifyResponse)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert refused.value.details() is not None
    found = [one for one in details(refused.value) if one.type != pb.DETAIL]
    assert {pb.ActionType.Name(one.type): one.doc_id.id for one in found if one.HasField("doc_id")} == {
        "INSERT": "there",
        "CHANGE": "gone",
        "DELETE": "free",
        "DEPEND": "there",
        "CLAIM": "held",
    }
    assert [(one.type, one.id) for one in found if one.HasField("id")] == [(pb.DELETE, request.deletes[0])]
    assert {one.doc_id.version for one in found if one.type in (pb.CHANGE, pb.CLAIM)} == {3, held.version}
    assert {one.id for one in await listed(client, queue)} == {"there", "held", "free"}
    assert await client.tasks(queue) == [task]
    await client.modify(doc_depends=[name_of(there)], doc_deletes=[name_of(free)])


async def test_an_id_belongs_to_its_namespace(client: GrpcClient, queue: str) -> None:
    await put(client, queue, {"id": "#1"})
    await put(client, f"{queue}/other", {"id": "#1"})
    await client.insert(queue, id=f"{queue}-#1")
    (made,) = await put(client, queue, {})
    assert len(made.id) > 10
    with pytest.raises(Unmet) as unmet:
        await put(client, queue, {"id": "#1", "content": "second"}, {"id": "2"})
    assert unmet.value.counts == {"DETAIL": 1, "INSERT": 1}
    assert {one.id for one in await listed(client, queue)} == {"#1", made.id}


async def test_docs_are_listed_by_ranges_of_keys(
    client: GrpcClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step if they fit into a page; or else by their keys first, and then in pages."""
    keys = [f"{number:03}" for number in reversed(range(130))]
    for few, known in ((keys[:4], keys[:4]), (keys[4:], keys)):
        docs = [{"key": key, "secondary_key": second, "content": key} for key in few for second in "ba"]
        await put(client, queue, *docs)
        every = await listed(client, queue)
        assert sorts(every) == [key + second for key in sorted(known) for second in "ab"]
        assert [content(one) for one in every] == [one.key for one in every]
        part = await listed(client, queue, key_start="127", key_end="129")
        assert sorts(part) == ["127a", "127b", "128a", "128b"]
    assert sorts(await listed(client, queue, key_start="128", limit=3)) == ["128a", "128b", "129a"]
    bare = await listed(client, queue, key_exact="007", omit_values=True)
    assert [(one.key, one.HasField("content")) for one in bare] == [("007", False)] * 2
    picked = [every[9].id, "nowhere", every[2].id]
    assert await listed(client, queue, ids=picked) == [every[9], every[2]]
    monkeypatch.setattr(namespaces, "MAX_DOCS", 200)
    with pytest.raises(grpc.aio.AioRpcError, match="more than 200 docs"):
        await listed(client, queue)


async def test_a_claim_is_until_a_time_ahead(client: GrpcClient, queue: str) -> None:
    (doc,) = await put(client, queue, {"key": "k"})
    now = (await client.call("Time", pb.TimeRequest(), pb.TimeResponse)).time_ms
    for ahead, claimant in (({}, ""), ({"at_ms": now + 60_000}, "me"), ({"by_ms": 60_000}, "me"), ({}, "")):
        (doc,) = (await client.modify(doc_changes=[edited(doc, "x", **ahead)])).changed_docs
        assert doc.claimant == (client.claimant if claimant else "")
        assert (50_000 < doc.at_ms - now < 70_000) == bool(claimant)
        assert await numbers(client, match_exact=[queue]) == {queue: (1, int(bool(claimant)))}
    # Who names no claimant claims nothing.
    request = pb.ModifyRequest(doc_changes=[edited(doc, "x", by_ms=60_000)])
    (doc,) = (await client.call("Modify", request, pb.ModifyResponse)).changed_docs
    assert (doc.claimant, await numbers(client, match_exact=[queue])) == ("", {queue: (1, 0)})


async def test_all_docs_of_a_key_are_claimed_or_none(client: GrpcClient, queue: str) -> None:
    other = client.another()
    await put(client, queue, *({"key": "k", "secondary_key": one} for one in "ba"), {"key": "kk"})
    assert await claim(client, queue, "none") == []
    mine = await claim(client, queue, "k")
    assert [(one.secondary_key, one.version, one.claimant) for one in mine] == [
        *(("a", 1, client.claimant), ("b", 1, client.claimant))
    ]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await claim(other, queue, "k")
    found = Counter(pb.ActionType.Name(one.type) for one in details(refused.value))
    assert (refused.value.code(), found) == (grpc.StatusCode.NOT_FOUND, {"DETAIL": 1, "CLAIM": 2})
    assert len(await claim(other, queue, "kk")) == 1
    for part in ({"doc_deletes": [name_of(mine[0])]}, {"doc_changes": [edited(mine[0], 1)]}):
        with pytest.raises(Unmet) as unmet:
            await other.modify(**part)
        assert unmet.value.counts == {"DETAIL": 1, "CLAIM": 1}
    mine = await claim(client, queue, "k", ms=60_000)
    assert [one.version for one in mine] == [2, 2]
    assert await numbers(client, match_exact=[queue]) == {queue: (3, 3)}
    (free,) = (await client.modify(doc_changes=[edited(mine[0], 1)])).changed_docs
    with pytest.raises(grpc.aio.AioRpcError):  # of the other one
        await claim(other, queue, "k")
    await client.modify(doc_deletes=[name_of(mine[1])])
    assert [one.id for one in await claim(other, queue, "k")] == [free.id]


async def test_a_claim_ends_with_its_time_and_looks_again_if_docs_change(queue: str) -> None:
    """Between the look of the second claimant and its claim, the docs change."""
    store = open_task_store(f"memory://{queue}")
    late, looks = 0, 0

    async def apply(command: Command[Any], now: int | None = None) -> Any:
        nonlocal looks
        if isinstance(command, Modify) and command.changes and late and looks < 2:
            looks += 1
            first = command.changes[0]
            await store_apply(Modify(changes=(Change(first.id, first.version),)))
        return await store_apply(command, now)

    store_apply = store.apply
    store.apply = apply  # type: ignore[method-assign] # so for all who use it
    verbs = Verbs(store, clock=lambda: wall_clock() + late)
    data = [pb.DocData(namespace=queue, key="k", secondary_key=one) for one in "ab"]
    await verbs.modify(pb.ModifyRequest(doc_inserts=data), Anybody())

    async def claims(who: str) -> list[tuple[str, int]]:
        query = pb.DocClaim(namespace=queue, claimant=who, key="k", duration_ms=500)
        found = (await verbs.claim_docs(pb.ClaimDocsRequest(claim_query=query), Anybody())).docs
        return [(one.claimant, one.version) for one in found]

    assert await claims("first") == [("first", 1)] * 2
    with pytest.raises(Refusal):
        await claims("second")
    late = 500_001
    assert await claims("third") == [("third", 4), ("third", 2)]
    assert looks == 2
    await store.aclose()


async def test_counters_of_many_clients_lose_nothing(client: GrpcClient, queue: str) -> None:
    """A task and a doc count together, in one step each time."""
    await put(client, queue, {"id": "0", "content": 0}, {"id": "1", "content": 0})
    for number in range(2):
        await client.insert(queue, 0, id=f"{queue}{number}")

    async def count(mine: GrpcClient) -> None:
        done = 0
        while done < 5:
            task = await mine.try_claim(queue)
            if task is None:
                await anyio.lowlevel.checkpoint()
                continue
            (doc,) = await listed(mine, queue, ids=[task.id[-1]])
            change = changed(task, value=message(plain(task) + 1))
            await mine.modify(changes=[change], doc_changes=[edited(doc, content(doc) + 1)])
            done += 1

    async def race(mine: GrpcClient) -> None:
        done = 0
        while done < 5:
            (doc,) = await listed(mine, queue, ids=["0"])
            try:
                await mine.modify(doc_changes=[edited(doc, content(doc) + 1)])
            except Unmet:
                continue
            done += 1

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(count, GrpcClient(client.channel, f"{queue}-{number}"))
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(race, GrpcClient(client.channel, f"{queue}-{number}"))
    assert sum(map(plain, await client.tasks(queue))) == 20
    assert sum(content(one) for one in await listed(client, queue)) == 40


async def test_the_numbers_of_namespaces(client: GrpcClient, queue: str) -> None:
    for name, count in (("n-1", 2), ("n-2", 3), ("other", 1)):
        await put(client, f"{queue}/{name}", *({"key": "k"} for _ in range(count)))
    await claim(client, f"{queue}/n-2", "k")
    found = await numbers(client, match_prefix=[queue])
    assert found == {f"{queue}/n-1": (2, 0), f"{queue}/n-2": (3, 3), f"{queue}/other": (1, 0)}
    assert {*found} <= {*await numbers(client)}
    assert len(await numbers(client, match_prefix=[f"{queue}/n-"])) == 2
    assert [*await numbers(client, match_exact=[f"{queue}/other", queue])] == [f"{queue}/other"]
    assert len(await numbers(client, match_prefix=[queue], limit=2)) == 2


async def test_docs_are_no_tasks(service: Addresses, client: GrpcClient, store_url: str, queue: str) -> None:
    (doc,) = await put(client, queue, {"id": "one"})
    task = await client.insert(queue)
    row = row_id(queue, "one")
    assert await client.tasks(ids=[row, task.id]) == [task]
    for method in ("QueueStats", "Queues"):
        assert not [one for one in await client.stats(method) if "#" in one]
    # The docs' queues come first, so a limit would count them.
    assert len(await client.stats(match_prefix=["docs#", queue], limit=1)) == 1
    assert await client.stats(match_exact=[queue_of(queue)]) == {}
    for part in ({"deletes": [pb.TaskID(id=row)]}, {"inserts": [pb.TaskData(queue=queue, id=row)]}):
        with pytest.raises(grpc.aio.AioRpcError, match="are those of docs"):
            await client.modify(**part)
    with pytest.raises(grpc.aio.AioRpcError, match="queue name"):
        await client.try_claim(queue_of(queue))
    for url in (store_url, f"intervalq://{service.grpc}"):
        async with Tasks(url) as tasks:
            names = [one.name for one in await tasks.queues()]
            assert queue in names
            assert not [one for one in names if "#" in one]
            assert [one.name for one in await tasks.queues(limit=1)] == names[:1]
            with pytest.raises(InvalidName):
                await tasks.claim(queue_of(queue))
            with pytest.raises(InvalidTask, match="are those of docs"):
                await tasks.insert(queue, 1, id=row)
    remote = open_task_store(f"intervalq://{service.grpc}")
    await remote.apply(Begin(Session("me")))
    failed = Finished(Range(queue, 0, 0, 0), (Failed(0, Insert(queue, "1", row)),))
    for command in (
        Work("me", queues=(queue_of(queue),)),
        Work("me", finished=(failed,)),
        Modify(inserts=(Insert(queue, "1", row),)),
        Modify(changes=(Change(row, 0, queue=queue),)),
        Modify(deletes=(Delete(row, 0),), force=True),
        Cancel((row,)),
    ):
        with pytest.raises(Exception, match=r"queue name|are those of docs"):
            await remote.apply(command)
    await remote.aclose()
    assert await listed(client, queue) == [doc]


async def test_what_a_doc_can_not_be_is_refused_by_name(client: GrpcClient, queue: str) -> None:
    (doc,) = await put(client, queue, {"id": "one"})
    same = pb.DocData(namespace=queue, id="one")
    bad = {
        "queue name": pb.ModifyRequest(doc_inserts=[pb.DocData(namespace="a#b")]),
        "can't be used": pb.ModifyRequest(doc_inserts=[pb.DocData(namespace=queue, id="a\n")]),
        "secondary_key has more": pb.ModifyRequest(
            doc_inserts=[pb.DocData(namespace=queue, secondary_key="x" * 257)]
        ),
        "twice": pb.ModifyRequest(doc_inserts=[same], doc_deletes=[name_of(doc)]),
        "keeps its namespace": pb.ModifyRequest(
            doc_changes=[pb.DocChange(old_id=name_of(doc), new_data=pb.DocData(namespace=f"{queue}/b"))]
        ),
        "1000 parts": pb.ModifyRequest(
            deletes=[pb.TaskID(id="x")], doc_deletes=[pb.DocID(namespace=queue, id="x")] * 1_000
        ),
    }
    for said, request in bad.items():
        with pytest.raises(grpc.aio.AioRpcError, match=said) as refused:
            await client.call("Modify", request, pb.ModifyResponse)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    claims = {"up to an hour": pb.DocClaim(namespace=queue, claimant="me", duration_ms=3_600_001)}
    claims |= {"needs a claimant": pb.DocClaim(namespace=queue), "queue name": pb.DocClaim(claimant="me")}
    for said, query in claims.items():
        with pytest.raises(grpc.aio.AioRpcError, match=said):
            await client.call("ClaimDocs", pb.ClaimDocsRequest(claim_query=query), pb.ClaimDocsResponse)
    assert await listed(client, queue) == [doc]

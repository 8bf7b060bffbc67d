"""EntroQ's docs are rows of tasks: what others do to these, and what stores without such rows say."""

from __future__ import annotations

from threading import get_ident
from typing import Any

import pytest

from intervalq._watch.edit import moved
from intervalq.cli._tasks.bulk import BulkEdit
from intervalq.errors import UnsupportedOperation
from intervalq.service import _large
from intervalq.service._access import Anybody
from intervalq.service._entroq import docs, namespaces
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.docs import queue_of, row_id
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._refusal import Refusal
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Change, Modify, Row, Select
from intervalq.tasks.store import open_task_store
from service.grpc_client import message

pytestmark = pytest.mark.anyio


async def test_a_doc_that_somebody_has_changed_as_a_task(queue: str) -> None:
    """Its claim is the note of a report; what is none, and what was moved away, breaks no list."""
    store = open_task_store(f"memory://{queue}")
    verbs = Verbs(store)
    data = [pb.DocData(namespace=queue, id=one, key="k") for one in "abcdef"]
    await verbs.modify(pb.ModifyRequest(doc_inserts=data), Anybody())
    query = pb.DocClaim(namespace=queue, claimant="me", key="k")
    await verbs.claim_docs(pb.ClaimDocsRequest(claim_query=query), Anybody())
    async with Tasks(store) as tasks:
        assert {(task.note, task.progress) for task in await tasks.tasks()} == {("me", None)}
        move = BulkEdit(tasks, moved(queue), "moved", force=False)
        await move.these([row_id(queue, "a")])
        assert "belongs to its namespace" in move.refused[row_id(queue, "a")]
    odd: list[dict[str, Any]] = [{"progress": "[]"}, {"progress": "x"}, {"error": "5"}, {"error": "[1, 2]"}]
    odd.append({"queue": queue})
    changes = [Change(row_id(queue, one), 1, **each) for one, each in zip("abcde", odd, strict=True)]
    await store.apply(Modify(changes=tuple(changes)))
    for ids, found in (([], "abcdf"), (["a", "e"], "a")):
        request = pb.DocsRequest(query=pb.DocQuery(namespace=queue, ids=ids))
        shown = (await verbs.docs(request, Anybody())).docs
        assert sorted(one.id for one in shown) == [*found]
    await store.aclose()


async def test_docs_that_are_too_large_together_are_not_claimed(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_task_store(f"memory://{queue}")
    verbs = Verbs(store)
    data = [pb.DocData(namespace=queue, key="k", content=message("x" * 600)) for _ in range(2)]
    await verbs.modify(pb.ModifyRequest(doc_inserts=data), Anybody())
    request = pb.ClaimDocsRequest(claim_query=pb.DocClaim(namespace=queue, claimant="me", key="k"))
    monkeypatch.setattr(namespaces, "MANY", 1)
    monkeypatch.setattr(_large, "MAX_LIST", 1_000)
    with pytest.raises(Refusal, match="at most"):
        await verbs.claim_docs(request, Anybody())
    assert {row.version for row in await store.apply(Select(queue=queue_of(queue)))} == {0}
    monkeypatch.setattr(namespaces, "MANY", 2)
    assert len((await verbs.claim_docs(request, Anybody())).docs) == 2
    await store.aclose()


async def test_nats_has_no_docs(queue: str) -> None:
    store = open_task_store("nats://127.0.0.1:1")  # nothing is sent to it
    for request in (
        pb.ModifyRequest(doc_inserts=[pb.DocData(namespace=queue, id="one")]),
        pb.ModifyRequest(doc_depends=[pb.DocID(namespace=queue, id="one")]),
        pb.ModifyRequest(doc_deletes=[pb.DocID(namespace=queue, id="one")]),
    ):
        with pytest.raises(UnsupportedOperation, match="no docs on NATS: use"):
            await Verbs(store).modify(request, Anybody())


async def test_others_are_answered_while_the_keys_of_many_docs_are_looked_at(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_task_store(f"memory://{queue}")
    verbs = Verbs(store)
    data = [pb.DocData(namespace=queue, key=str(number)) for number in range(3)]
    await verbs.modify(pb.ModifyRequest(doc_inserts=data), Anybody())
    threads: set[int] = set()

    def keys_of(row: Row) -> tuple[str, str]:
        threads.add(get_ident())
        return docs.keys_of(row)

    monkeypatch.setattr(namespaces, "keys_of", keys_of)
    monkeypatch.setattr(namespaces, "PAGE", 2)
    request = pb.DocsRequest(query=pb.DocQuery(namespace=queue, key_start="1"))
    assert [one.key for one in (await verbs.docs(request, Anybody())).docs] == ["1", "2"]
    assert threads
    assert get_ident() not in threads
    await store.aclose()

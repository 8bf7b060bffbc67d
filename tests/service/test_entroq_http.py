"""EntroQ over HTTP/JSON: its own published client and worker, and what a client may get wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import httpx
import pytest
from entroq import (
    DependencyError,
    DocData,
    EntroQWorker,
    InvalidArgumentError,
    Modification,
    MoveError,
    Task,
    TaskData,
    TaskID,
)
from entroq.json import EntroQJSON

from intervalq.service import Addresses
from intervalq.service._entroq.waiting import Waiter, Waiting


@pytest.fixture
async def published(service: Addresses) -> AsyncIterator[EntroQJSON]:
    """The client that EntroQ's authors publish."""
    async with EntroQJSON(f"http://{service.http}") as client:
        yield client


@pytest.fixture
async def plain(service: Addresses) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{service.http}/api/v0") as client:
        yield client


async def test_the_published_client_inserts_claims_renews_and_deletes(
    published: EntroQJSON, queue: str
) -> None:
    value = {"text": "ä", "numbers": [1, 2.5], "nothing": None}
    made = await published.modify(Modification(Modification.inserting(TaskData(queue, value=value))))
    assert [one.version for one in made.tasks_inserted] == [0]
    assert [(one["name"], one["num_tasks"]) for one in await published.queues(queue)] == [(queue, 1)]
    task = await published.try_claim(queue)
    assert task is not None
    assert (task.value, task.claims, task.claimant) == (value, 1, published.claimant_id)
    assert await published.try_claim(queue) is None
    renewed = (await published.modify(Modification(Modification.arriving(task, 600)))).tasks_changed[0]
    assert (renewed.version, renewed.value) == (task.version + 1, value)
    assert 550 < (renewed.at - await published.time()).total_seconds() < 650
    with pytest.raises(DependencyError) as unmet:
        await published.modify(Modification(Modification.deleting(task)))
    assert [one.id for one in unmet.value.deletes] == [task.id]
    await published.modify(Modification(Modification.deleting(renewed)))
    assert await published.tasks(queue) == []


async def test_a_published_worker_does_all_tasks(published: EntroQJSON, queue: str) -> None:
    """Each is done once; one that can't be done is moved to the queue of errors."""
    inserts = [Modification.inserting(TaskData(queue, value=number)) for number in range(8)]
    await published.modify(Modification(*inserts))
    done: list[int] = []

    @EntroQWorker.handler  # type: ignore[untyped-decorator]  # that package has no types
    async def work(task: Task, docs: object) -> Modification:
        del docs
        if task.value == 3:
            raise MoveError("odd")
        done.append(int(task.value))
        return Modification(Modification.deleting(task))

    async with anyio.create_task_group() as group:

        async def run() -> None:
            await EntroQWorker(published, queue).run(work)

        group.start_soon(run)
        while await published.tasks(queue):
            await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert sorted(done) == [0, 1, 2, 4, 5, 6, 7]
    (failed,) = await published.tasks(f"{queue}/err")
    assert (failed.value, "odd" in failed.err) == (3, True)


async def test_the_published_client_keeps_docs(published: EntroQJSON, queue: str) -> None:
    """It lists, inserts, changes, deletes and depends; it claims sets, which are of a later version."""
    make = Modification.inserting
    data = [DocData(queue, key, content={"n": key}, id=f"d{key}") for key in ("2", "1", "3")]
    made = await published.modify(Modification(*map(make, data), make(TaskData(queue, id=queue))))
    assert [(one.id, one.version, one.claimant) for one in made.docs_inserted] == [
        *(("d2", 0, ""), ("d1", 0, ""), ("d3", 0, ""))
    ]
    assert [one.key for one in await published.docs(queue, key_start="1", key_end="3")] == ["1", "2"]
    assert [one.content for one in await published.docs(queue, key_exact="3", omit_values=True)] == [None]
    doc = made.docs_inserted[0]
    until = await published.time() + timedelta(minutes=1)
    held = await published.modify(Modification(Modification.changing(doc, content=[1, 2.5], at=until)))
    (mine,) = held.docs_changed
    assert (mine.version, mine.content, mine.key, mine.claimant) == (1, [1, 2.5], "2", published.claimant_id)
    other = published.as_claimant("other")
    drop = Modification.deleting
    with pytest.raises(DependencyError) as unmet:
        await other.modify(Modification(make(data[1]), drop(mine), drop(TaskID(queue, 7))))
    assert [one.id for one in unmet.value.doc_inserts] == ["d1"]
    assert [(one.namespace, one.id, one.version) for one in unmet.value.doc_claims] == [(queue, "d2", 1)]
    assert [one.id for one in unmet.value.deletes] == [queue]
    with pytest.raises(InvalidArgumentError, match="sets"):
        await published.claim_docs(queue, "2")
    await published.modify(
        Modification(Modification.deleting(mine), Modification.deleting(made.tasks_inserted[0]))
    )
    assert [one.id for one in await published.docs(queue)] == ["d1", "d3"]


async def test_a_client_that_goes_away_claims_nothing(
    published: EntroQJSON, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service knows that it has gone before the next client, which came later, gets the task."""
    joined, left = anyio.Event(), anyio.Event()
    join, leave = Waiting._join, Waiting._leave

    def noted(self: Waiting, waiter: Waiter) -> None:
        join(self, waiter)
        joined.set()

    def noted_too(self: Waiting, waiter: Waiter) -> None:
        leave(self, waiter)
        left.set()

    monkeypatch.setattr(Waiting, "_join", noted)
    monkeypatch.setattr(Waiting, "_leave", noted_too)
    gone = published.as_claimant("gone")
    async with anyio.create_task_group() as group:
        group.start_soon(gone.claim, queue)
        await joined.wait()
        group.cancel_scope.cancel()
    await left.wait()
    await published.modify(Modification(Modification.inserting(TaskData(queue))))
    task = await published.claim(queue)
    assert (task.version, task.claims, task.claimant) == (1, 1, published.claimant_id)


async def test_what_a_client_gets_wrong_is_said(
    published: EntroQJSON, plain: httpx.AsyncClient, queue: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="queue name"):
        await published.try_claim("no  queue")
    for body in (b"{", b"[]", b'{"nope": 1}', b'{"queues": "q"}', b'{"claimantId": "\xff"}', b"[" * 100_000):
        answer = await plain.post("/claim", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, 3), body
    half = b'"\\ud800"'
    for odd in (
        b'"docDeletes": ' + half,
        half + b": 1",
        b'"changes": [{"mode": ' + half + b"}]",
        b'"docDeletes": "' + b"x" * 100_000 + b'"',
    ):
        answer = await plain.post("/modify", content=b"{" + odd + b"}")
        assert (answer.status_code, len(answer.content) < 1_000) == (400, True)
    answer = await plain.post("/modify", content=b" " * (4 * 1024 * 1024 + 1))
    assert (answer.status_code, "bytes" in answer.json()["message"]) == (429, True)
    assert (await plain.get("/tasks")).status_code == 400
    long = f'{{"inserts": [{{"queue": "{queue}", "value": {"9" * 400}}}]}}'
    assert (await plain.post("/modify", content=long)).status_code == 400
    assert (await plain.get("/tasks", params={"queue": queue, "limit": "x"})).status_code == 400
    assert (await plain.get("/queues", params={"match": "x"})).status_code == 400
    for bad in (
        {"query.namespace": "a#b"},
        {"query.namespace": "n", "query.omitValues": "1"},
        {"query": "n"},
    ):
        assert (await plain.get("/docs", params=bad)).status_code == 400
    assert (await plain.get("/claim")).status_code == 405


async def test_a_body_of_very_many_values_is_refused_before_it_is_read_further(
    plain: httpx.AsyncClient, queue: str
) -> None:
    """Reading all of it would take seconds, in which nobody else is answered."""
    for count, code in ((20_000, 200), (300_000, 400)):
        value = ",".join(["[]"] * count)
        body = f'{{"inserts": [{{"queue": "{queue}", "value": [{value}]}}]}}'
        answer = await plain.post("/modify", content=body.encode())
        assert answer.status_code == code
    assert "more than 200,000 values" in answer.json()["message"]


async def test_tasks_are_streamed_as_lines(
    published: EntroQJSON, plain: httpx.AsyncClient, queue: str
) -> None:
    inserts = [Modification.inserting(TaskData(queue, value=number)) for number in range(3)]
    await published.modify(Modification(*inserts))
    answer = await plain.get("/tasks/stream", params={"queue": queue})
    assert len(answer.text.splitlines()) == 3
    assert (await plain.get("/tasks/stream")).status_code == 400


async def test_a_number_that_only_intervalqs_own_protocol_carries_is_left_out(
    plain: httpx.AsyncClient, queue: str
) -> None:
    """Infinity, which JSON's 1e400 is to Python, can't be written by protobuf."""
    inserts = [{"queue": queue, "id": queue, "json": "[1e400]"}]
    modify = plain.base_url.copy_with(path="/v1/tasks/modify")
    (await plain.post(modify, json={"inserts": inserts})).raise_for_status()
    for path in ("tasks", "tasks/stream"):
        answer = await plain.get(f"/{path}?queue={queue}")
        assert answer.status_code == 200
        assert "can't be shown" in answer.text
    assert (await plain.post("/claim", json={"claimantId": "me", "queues": [queue]})).json() == {}

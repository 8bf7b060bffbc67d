"""Lists of large tasks: read a page at a time, and only as many as clients take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from hashlib import sha256
from typing import Any, cast

import anyio
import grpc.aio
import httpx
import pytest
from starlette.requests import Request

from intervalq.service import _http, _large
from intervalq.service._access import Anybody, FileAccess, Rule, Subject
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq import values
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._refusal import Refusal
from intervalq.tasks.rules import Command, Insert, Modify, OutcomeRow, Outcomes, Select
from intervalq_stores.memory.tasks import MemoryTaskStore
from service.grpc_client import GrpcClient
from service.serving import served


class Watched(MemoryTaskStore):
    """A store that notes how many values each step reads."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.read: list[int] = []
        self.outcomes: list[OutcomeRow] = []

    async def apply(self, command: Command[Any], now: int | None = None) -> Any:
        if isinstance(command, Outcomes):
            found = [row for row in self.outcomes if not command.ids or row.id in command.ids]
            self.read.append(len(found := found[: command.limit]))
            return tuple(found)
        answer = await super().apply(command, now)
        if isinstance(command, Select):
            self.read.append(len(answer) if command.values else 0)
        return answer


@pytest.fixture
async def store(queue: str) -> AsyncIterator[Watched]:
    store = Watched(f"memory://{queue}")
    value = f'"{"x" * 20_000}"'
    for begin in range(0, 300, 50):
        await store.apply(Modify(inserts=tuple(Insert(queue, value, f"{begin + n}") for n in range(50))))
    yield store
    await store.aclose()


async def test_no_step_reads_all_values_of_a_long_list(store: Watched, queue: str) -> None:
    async with served(store) as there, httpx.AsyncClient(base_url=f"http://{there.http}") as http:
        for path in ("tasks", "tasks/stream"):
            listed = await http.get(f"/api/v0/{path}", params={"queue": queue, "limit": 250}, timeout=60)
            assert listed.text.count('"version"') == 250
        assert len((await http.post("/v1/tasks/select", json={"queue": queue}, timeout=60)).json()) == 300
        ids = [f"{n}" for n in range(220)]
        assert len((await http.post("/v1/tasks/select", json={"ids": ids}, timeout=60)).json()) == 220
    assert sum(store.read) > 1_000
    assert max(store.read) <= _large.PAGE + 1


async def test_a_list_that_is_too_large_is_refused(
    store: Watched, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_large, "MAX_LIST", 3_000_000)
    async with served(store) as there, httpx.AsyncClient(base_url=f"http://{there.http}") as http:
        for answer in (
            await http.get("/api/v0/tasks", params={"queue": queue}, timeout=60),
            await http.post("/v1/tasks/select", json={"queue": queue}, timeout=60),
        ):
            assert answer.status_code in (413, 429)
            assert "give a lower limit" in answer.text
        few = await http.get("/api/v0/tasks", params={"queue": queue, "limit": 120}, timeout=60)
        assert few.text.count('"version"') == 120


async def test_lists_of_too_many_values_are_refused(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value takes a hundred bytes in a message, and two bytes in a task."""
    monkeypatch.setattr(values, "MAX_SHOWN_VALUES", 1_000)
    async with (
        served(f"memory://{queue}") as there,
        httpx.AsyncClient(base_url=f"http://{there.http}/api/v0", timeout=60) as http,
    ):
        numbers = {"a": [0] * 398, "b": {}}
        inserts = [{"queue": queue, "id": f"{n}", "value": numbers} for n in range(3)]
        docs = [{"namespace": queue, "id": f"{n}", "key": "k", "content": numbers} for n in range(3)]
        made = (await http.post("/modify", json={"inserts": inserts, "docInserts": docs})).json()
        assert ["value" in one for one in made["inserted"]] == [True, True, False]
        looks: dict[str, dict[str, str | int]] = {
            "tasks": {"queue": queue, "limit": 3},
            "docs": {"query.namespace": queue, "query.limit": 3},
        }
        for path, query in looks.items():
            refused = await http.get(f"/{path}", params=query)
            assert refused.status_code == 429
            assert "give a lower limit" in refused.text
            *_, limit = query
            assert len((await http.get(f"/{path}", params=query | {limit: 2})).json()[path]) == 2
        listed = await http.get("/tasks/stream", params={"queue": queue})
        assert listed.text.count('"value"') == 3
        changes = [
            {"oldId": {"id": f"{n}"}, "newData": {"byMs": 1}, "mode": "CHANGE_LEASE"} for n in range(3)
        ]
        changed = (await http.post("/modify", json={"changes": changes})).json()["changed"]
        assert [one.get("value") for one in changed] == [numbers, numbers, None]
        wanted = {"namespace": queue, "key": "k", "claimant": "me"}
        claimed = (await http.post("/docs/claim", json={"claimQuery": wanted})).json()["docs"]
        assert [one.get("content") for one in claimed] == [numbers, numbers, None]


async def test_who_takes_no_answers_gets_no_more_lists(
    store: Watched, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads the first task of a stream only: gRPC lets the others wait."""
    none_waits = anyio.Event()

    done = _large.Answers._taken

    def taken(answers: _large.Answers, sender: str, size: int) -> None:
        done(answers, sender, size)
        if not answers._untaken:
            none_waits.set()

    monkeypatch.setattr(_large.Answers, "_taken", taken)
    monkeypatch.setattr(_large, "_OF_ONE", 1_000_000)
    async with (
        served(store) as there,
        grpc.aio.insecure_channel(str(there.grpc)) as channel,
        httpx.AsyncClient(base_url=f"http://{there.http}") as others,
    ):
        client = GrpcClient(channel, "me")
        stream = channel.unary_stream(
            "/api.EntroQ/StreamTasks",
            request_serializer=pb.TasksRequest.SerializeToString,
            response_deserializer=pb.TasksResponse.FromString,
        )(pb.TasksRequest(queue=queue))
        await stream.read()
        with pytest.raises(grpc.aio.AioRpcError, match="take them") as refused:
            await client.tasks(queue)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await client.try_claim(queue) is not None
        listed = await others.get("/api/v0/tasks", params={"queue": queue, "limit": 9}, timeout=60)
        assert listed.status_code == 200
        stream.cancel()
        with anyio.fail_after(60):
            await none_waits.wait()
        assert len(await client.tasks(queue, limit=9)) == 9


async def test_a_deep_value_is_shown_as_it_is_stored(store: Watched, queue: str) -> None:
    """Indented, it would grow a thousandfold."""
    deep = f"{'[' * 900}{','.join(['0'] * 5_000)}{']' * 900}"
    await store.apply(Modify(inserts=(Insert(queue, deep, "deep"), Insert(queue, '{"a": [1]}', "flat"))))
    async with served(store) as there, httpx.AsyncClient(base_url=f"http://{there.http}") as http:
        shown = await http.get("/v1/overview/tasks", params={"id": "deep"}, timeout=60)
        assert shown.json() == {"value": deep}
        shown = await http.get("/v1/overview/tasks", params={"id": "flat"}, timeout=60)
        assert shown.json()["value"].count("\n") == 4


async def test_deep_values_are_refused(store: Watched, queue: str) -> None:
    deep = f"{'[' * 201}{']' * 201}"
    allowed = f"{'[' * 200}{']' * 200}"
    async with served(store) as there, httpx.AsyncClient(base_url=f"http://{there.http}") as http:
        for value, status in ((deep, 400), (allowed, 200)):
            insert = {"queue": queue, "json": value, "id": "new"}
            answer = await http.post("/v1/tasks/modify", json={"inserts": [insert]}, timeout=60)
            assert answer.status_code == status, answer.text
        change = {"id": "new", "version": 0, "json": deep}
        answer = await http.post("/v1/tasks/modify", json={"changes": [change]}, timeout=60)
        assert answer.status_code == 400
        assert "deeper" in answer.text


async def test_lists_of_outcomes_are_bounded(
    store: Watched, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = OutcomeRow("", queue, None, "done", "1", "", 1, "", 0, 0, 0, "", 0, 0)
    store.outcomes = [row._replace(id=f"{n}", result="x" * 20_000, ended=n) for n in range(300)]
    async with served(store) as there, httpx.AsyncClient(base_url=f"http://{there.http}", timeout=60) as http:
        assert len((await http.post("/v1/tasks/outcomes", json={})).json()) == 300
        ids = [f"{n}" for n in range(220)]
        listed = (await http.post("/v1/tasks/outcomes", json={"ids": ids})).json()
        assert [one["id"] for one in listed] == ids
        monkeypatch.setattr(_large, "MAX_LIST", 1_000_000)
        store.read.clear()
        assert (await http.post("/v1/tasks/outcomes", json={"ids": ids})).status_code == 413
        assert (await http.post("/v1/tasks/outcomes", json={})).status_code == 413
        assert max(store.read) <= _large.PAGE + 1
        assert len((await http.post("/v1/tasks/outcomes", json={"limit": 40})).json()) == 40


async def test_lists_without_values_are_bounded(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the errors of each task, of which there may be many."""
    store, steps = MemoryTaskStore(f"memory://{queue}"), list[int]()

    async def apply(command: Command[Any], now: int | None = None) -> Any:
        answer = await MemoryTaskStore.apply(store, command, now)
        if not isinstance(command, Select):
            return answer
        steps.append(len(answer))
        return tuple(row._replace(errors="x" * 20_000) for row in answer)

    await store.apply(Modify(inserts=tuple(Insert(queue, "1", f"{n}") for n in range(500))))
    monkeypatch.setattr(store, "apply", apply)
    asked = {"queue": queue, "values": False}
    async with served(store) as there, httpx.AsyncClient(base_url=f"http://{there.http}", timeout=60) as http:
        assert len((await http.post("/v1/tasks/select", json=asked)).json()) == 500
        monkeypatch.setattr(_large, "MAX_LIST", 1_000_000)
        steps.clear()
        assert (await http.post("/v1/tasks/select", json=asked)).status_code == 413
        ids = [f"{n}" for n in range(220)]
        assert (await http.post("/v1/tasks/select", json={"ids": ids, "values": False})).status_code == 413
        assert max(steps) <= _large.PAGE + 1
        assert len((await http.post("/v1/tasks/select", json=asked | {"limit": 40})).json()) == 40


async def test_each_page_of_a_stream_takes_its_turn(
    store: Watched, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs, turns = Verbs(store), list[bool]()

    async def apply(command: Command[Any], now: int | None = None) -> Any:
        turns.append(verbs.answers._turn.locked())
        return await Watched.apply(store, command, now)

    monkeypatch.setattr(store, "apply", apply)
    shown = [one async for one in verbs.stream_tasks(pb.TasksRequest(queue=queue), Anybody())]
    assert len(shown) == 300
    assert len(turns) > 3
    assert all(turns)


async def test_streams_of_small_tasks_count(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_large, "_OF_ONE", 3 * _large.COUNTED)
    async with aclosing(MemoryTaskStore(f"memory://{queue}")) as store:
        await store.apply(Modify(inserts=(Insert(queue, "1", "a"), Insert(queue, "1", "b"))))
        verbs, request = Verbs(store), pb.TasksRequest(queue=queue)
        streams = [verbs.stream_tasks(request, Anybody()) for _ in range(4)]
        for stream in streams[:3]:
            await anext(stream)
        with pytest.raises(Refusal, match="take them"):
            await anext(streams[3])
        await cast("Any", streams[0]).aclose()
        assert (await verbs.tasks(request, Anybody())).tasks


def test_a_client_is_counted_by_its_account() -> None:
    """However it writes its token: otherwise it would have several shares."""
    token = "secret"
    rule = Rule(frozenset({"read"}), frozenset(), ("",))
    access = FileAccess({sha256(token.encode()).digest(): Subject("ann", (rule,))})
    seen = set[str]()
    for header in (f"Bearer {token}", f"bearer  {token}", f"BEARER {token} "):
        scope = {"type": "http", "headers": [(b"authorization", header.encode())], "client": ("::1", 1)}
        _http.caller_of(access, Request(scope))
        seen.add(_large.SENDER.get())
    assert seen == {"ann"}


async def test_a_few_tasks_are_found_while_a_list_is_made(store: Watched, queue: str) -> None:
    verbs = Verbs(store)
    async with verbs.answers.making():
        with anyio.fail_after(60):
            found = await verbs.tasks(pb.TasksRequest(task_id=["1", "2"]), Anybody())
    assert len(found.tasks) == 2

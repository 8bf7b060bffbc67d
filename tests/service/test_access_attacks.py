"""Requests that say one name and mean another: nothing of another queue is changed or shown."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import grpc
import grpc.aio
import pytest

from intervalq import IntervalQueue
from intervalq._wire import intervalq_v1_pb2 as v1
from intervalq.ledger.rules import Claim, Ended, Look, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.rules import Inspect
from intervalq.service import Addresses
from intervalq.service._access import ACTIONS
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.store import open_store
from intervalq.tasks.rules import Count, Insert, Modify, Select
from intervalq.tasks.store import open_task_store
from service.serving import served
from service.test_access import sha256

SECRET: Final = "s3cret"
ROW: Final = f"{SECRET}-row"
RULES: Final = """
[eve]
token_sha256 = "{digest}"
allow = [
  {{ queues = ["mine", "mine-*", "/mine/*"], actions = {actions} }},
  {{ queues = ["ledger#mine", "schedule#mine*", "lock#mine"], actions = {actions} }},
]
"""
OTHERS: Final = (  # the name `theirs`, as somebody might hope to write it
    *(
        "theirs",
        "Theirs",
        "THEIRS",
        "%74heirs",
        "%2574heirs",
        "theirs%00",
        "theirs%20",
        "theirs%0a",
        "theirs/",
    ),
    *("theirs;mine", "theirs%3Bmine", "theirs?queue=mine", "theirs%23mine", "th%D0%B5irs", "theirs%E2%80%8B"),
    *("mine/../theirs", "mine%2F..%2Ftheirs", "mine%2f%2e%2e%2ftheirs", "mine/..%5ctheirs", "./theirs"),
    *(
        "/theirs",
        "%2Ftheirs",
        "mine:../theirs",
        "mine%3A..%2Ftheirs",
        "theirs:k",
        "theirs%3Amine",
        "mine%2A",
        "*",
    ),
    *(
        "mine,theirs",
        "mine%00theirs",
        "mine-/../theirs",
        "mine-%2e%2e/theirs",
        "t" * 5_000,
        "mine" + "x" * 5_000,
    ),
)
HEADERS: Final = (
    "X-HTTP-Method-Override: GET",
    "X-Original-URL: /v1/queues/theirs/slot",
    "X-Forwarded-Prefix: /v1/queues/mine",
    "Authorization: Bearer nobody",  # a second one
)


Sent = tuple[str, str, str, bytes]
"""A method, a path, a header and a body."""


def in_paths() -> Iterator[Sent]:
    """Names in paths."""
    for method, name in itertools.product(
        ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"), OTHERS
    ):
        for verb in ("", "/slot", "/quote", "/hold", "/resume") if method in ("POST", "GET") else ("",):
            yield method, f"/v1/queues/{name}{verb}", "", b'{"interval": "7s"}' if method == "PUT" else b""
        if method == "POST":
            for verb in ("look", "claim", "drop", "cancel", "count"):
                yield method, f"/v1/ledgers/{name}/{verb}", "", b'{"session": "s", "expiry": 9, "ids": ["a"]}'
            for verb in ("pause", "resume", "fire"):
                yield method, f"/v1/schedules/{name}/{verb}", "", b""


def in_queries() -> Iterator[Sent]:
    """Names in headers and queries."""
    for header in HEADERS:
        for path in ("/v1/queues/theirs/slot", "/v1/queues/theirs", "/api/v0/tasks?queue=/theirs"):
            yield "POST", path, header, b""
            yield "GET", path, header, b""
    for path in ("/api/v0/tasks", "/api/v0/tasks/stream"):
        for query in (
            "queue=/theirs",
            "queue=/mine/a&queue=/theirs",
            "queue=/theirs&queue=/mine/a",
            "taskId=t",
        ):
            yield "GET", f"{path}?{query}", "", b""
            yield "GET", f"{path}/?{query}", "", b""


def in_bodies() -> Iterator[Sent]:
    """Names in bodies."""
    names = (
        "/theirs",
        "/mine/../theirs",
        "/mine//../theirs",
        "/THEIRS",
        "/mine/\u202e",
        "/thеirs",
        "/mine/*",
        "//theirs",
    )
    for name in names:
        for text in (
            f'"queue": "/mine/a", "queue": {json.dumps(name)}',
            f'"queue": {json.dumps(name)}, "queue": "/mine/a"',
        ):
            yield "POST", "/v1/tasks/select", "", f"{{{text}}}".encode()
            insert = f'{{{text}, "id": "new-{name}", "json": "1"}}'
            yield "POST", "/v1/tasks/modify", "", f'{{"inserts": [{insert}]}}'.encode()
            yield "POST", "/api/v0/modify", "", f'{{"claimantId": "eve", "inserts": [{{{text}}}]}}'.encode()
        claim = {"claimantId": "eve", "queues": ["/mine/a", name]}
        yield "POST", "/api/v0/claim", "", json.dumps(claim).encode()
    for id_ in ({"ids": ["t"]}, {"queue": "/mine/a", "ids": ["t"]}, {"session": "theirs"}, {}):
        yield "POST", "/v1/tasks/select", "", json.dumps(id_).encode()
        yield "POST", "/v1/tasks/outcomes", "", json.dumps(id_).encode()
    for part in (
        {"deletes": [{"id": "t", "version": 0}]},
        {"changes": [{"id": "t", "version": 0, "queue": "/mine/a"}]},
    ):
        for more in ({}, {"force": True}, {"session": "theirs"}):
            yield "POST", "/v1/tasks/modify", "", json.dumps(part | more).encode()
    for change in ("retry", "cancel", "delete"):
        for name, ids in itertools.product(("/theirs", "/mine/../theirs", "/mine/a"), ({}, {"ids": ["t"]})):
            yield "POST", "/v1/tasks/edit", "", json.dumps({"change": change, "queue": name} | ids).encode()
    yield "POST", "/v1/tasks/cancel", "", b'{"ids": ["t"]}'
    yield "GET", "/v1/queues", "", b""
    yield "GET", "/v1/ledgers", "", b""
    yield "GET", "/v1/overview", "", b""
    yield "POST", "/v1/schedules/read", "", b"{}"


async def answer_to(place: str, method: str, path: str, header: str, body: bytes) -> bytes:
    """What comes over a connection of its own, as it is sent: no client makes the path sound first."""
    host, port = place.rsplit(":", 1)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Authorization: Bearer token of eve\r\nContent-Length: {len(body)}\r\n"
    head += f"{header}\r\n\r\n" if header else "\r\n"
    answer = b""
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(head.encode() + body)
        with anyio.fail_after(60):
            try:
                while True:
                    answer += await stream.receive()
            except anyio.EndOfStream:
                return answer


async def theirs(store: str) -> tuple[set[str], tuple[object, ...]]:
    """All that eve has no right to, by the stores themselves: names of queues, and what they have."""
    queues, tasks, ledgers = open_store(store), open_task_store(store), open_ledger_store(store)
    paced = {name for name in await queues.names() if name.partition(":")[0] != "mine"}
    found = (
        await queues.apply("theirs", Inspect(), 0),
        [one.name for one in await tasks.apply(Count()) if one.name != "/mine/a"],
        await tasks.apply(Select(queue="/theirs")),
        await ledgers.apply("theirs", Look(limit=10), 0),
    )
    for each in (queues, tasks, ledgers):
        await each.aclose()
    return paced, found


@pytest.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[tuple[Addresses, str]]:
    store = f"{tmp_path}/app.db"
    async with (
        IntervalQueue("theirs", rate="1/s", limits=[f"9 {SECRET}/h"], store=store) as queue,
        queue.slot(cost={SECRET: 1}),
    ):
        pass
    async with IntervalQueue("mine", rate="100000/s", store=store) as queue, queue.slot():
        pass
    tasks, ledgers = open_task_store(store), open_ledger_store(store)
    await tasks.apply(Modify(inserts=(Insert("/theirs", f'"{SECRET}"', "t"), Insert("/mine/a", "1", "own"))))
    await ledgers.apply("theirs", Claim("s", 10**9, (ROW,)))
    await ledgers.apply("theirs", Record("s", 10**9, (Ended(ROW, "1"),)))
    await tasks.aclose()
    await ledgers.aclose()
    access = tmp_path / "access.toml"
    access.write_text(RULES.format(digest=sha256("token of eve"), actions=json.dumps(ACTIONS)))
    async with served(store, access=str(access)) as there:
        yield there, store


async def test_no_request_over_http_reaches_the_queues_of_others(attacked: tuple[Addresses, str]) -> None:
    there, store = attacked
    before, codes = await theirs(store), Counter[bytes]()
    for each in itertools.chain(in_paths(), in_queries(), in_bodies()):
        answer = await answer_to(str(there.http), *each)
        assert SECRET.encode() not in answer, (each, answer)
        code = answer[9:12]
        assert code < b"500", (each, answer)
        codes[code] += 1
    assert await theirs(store) == before
    assert codes[b"200"] > 5  # what is eve's own
    assert codes[b"403"] > 100


Metadata = list[tuple[str, str | bytes]]

PATHS: Final = (
    *(
        "/API.ENTROQ/Tasks",
        "/api.entroq/Tasks",
        "/api.EntroQ/tasks",
        "/api.EntroQ/Tasks/",
        "//api.EntroQ/Tasks",
    ),
    *(
        "/api.EntroQ/../api.EntroQ/Tasks",
        "/api.EntroQ%2FTasks",
        "/entroq.EntroQ/Tasks",
        "/intervalq.v1.store/Apply",
    ),
)


async def test_no_call_over_grpc_reaches_the_queues_of_others(attacked: tuple[Addresses, str]) -> None:
    there, store = attacked
    before = await theirs(store)
    tasks = pb.TasksRequest(queue="/theirs").SerializeToString()
    select = v1.Step(
        version=1, kind=v1.TASKS, command=b'{"op":"Select","queue":"/theirs"}'
    ).SerializeToString()
    listens = v1.Subject(version=1, kind=v1.QUEUES, name="theirs").SerializeToString()
    good = ("authorization", "Bearer token of eve")
    known: tuple[Metadata, ...] = (  # how tokens might be read
        [good],
        [("Authorization".lower(), "bearer  token of eve ")],
    )
    unknown: tuple[Metadata, ...] = (
        [],
        [("authorization", "token of eve")],
        [("authorization", "Bearer token of eve, Bearer x")],
        [("authorization", "Bearer TOKEN OF EVE")],
        [("authorization-bin", b"Bearer token of eve")],
        [("x-authorization", "Bearer token of eve")],
        [good, ("authorization", "Bearer token of eve")],
    )
    async with grpc.aio.insecure_channel(str(there.grpc)) as channel:

        async def code_of(path: str, payload: bytes, metadata: Metadata) -> grpc.StatusCode:
            method: Any = channel.unary_stream(path)
            call = method(payload, metadata=metadata, timeout=60)
            try:
                async for message in call:
                    assert SECRET.encode() not in message
            except grpc.aio.AioRpcError as error:
                assert SECRET not in str(error)
            code: grpc.StatusCode = await call.code()
            return code

        for path, payload in (
            ("/api.EntroQ/Tasks", tasks),
            ("/api.EntroQ/StreamTasks", tasks),
            ("/intervalq.v1.Store/Apply", select),
            ("/intervalq.v1.Store/Listen", listens),
        ):
            for metadata in known:
                assert await code_of(path, payload, metadata) == grpc.StatusCode.PERMISSION_DENIED
            for metadata in unknown:
                assert await code_of(path, payload, metadata) == grpc.StatusCode.UNAUTHENTICATED, metadata
        for path in PATHS:
            assert await code_of(path, tasks, [good]) == grpc.StatusCode.UNIMPLEMENTED, path
    assert await theirs(store) == before

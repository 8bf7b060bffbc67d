"""Access by an Open Policy Agent: its REST exchange, with a real policy that a real evaluator judges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import grpc.aio
import httpx
import pytest
import uvicorn
from regopy import Interpreter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from intervalq.errors import InvalidOption, StoreUnavailable, Unauthorized
from intervalq.rules import Advance, Settings
from intervalq.service import _opa, serve
from intervalq.store import open_store
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Begin, Delete, End, Insert, Modify, Select, Session
from intervalq.tasks.store import open_task_store
from service.grpc_client import changed, id_of
from service.test_access import serving

POLICY = """
package entroq.authz

import rego.v1

default allow := false

allow if count(failed) == 0

rules := {
	"token of ann": [{"prefix": "/jobs/", "actions": ["CLAIM", "INSERT", "READ", "CHANGE"]}],
	"token of bob": [{"prefix": "/", "actions": ["READ"]}],
}

may(queue, action) if {
	input.authz.type == "Bearer"
	some rule in rules[input.authz.credentials]
	startswith(queue, rule.prefix)
	action in rule.actions
}

failed contains {"exact": queue.exact, "actions": left} if {
	some queue in input.queues
	left := [action | some action in queue.actions; not may(queue.exact, action)]
	count(left) > 0
}
"""


class Agent:
    """An agent that answers as Open Policy Agent does, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.is_broken = False
        self.odd: Response | None = None
        self.url = ""

    async def answer(self, request: Request) -> Response:
        question = (await request.json())["input"]
        self.asked.append(question)
        if self.is_broken:
            return Response(status_code=500)
        if self.odd is not None:
            return self.odd
        rego = Interpreter()
        rego.add_module("policy", POLICY)
        rego.set_input(question)
        (result,) = json.loads(str(rego.query("data.entroq.authz")))["expressions"]
        return JSONResponse({"result": result})


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    agent = Agent()
    app = Starlette(routes=[Route("/v1/data/entroq/authz", agent.answer, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    async with anyio.create_task_group() as group:
        group.start_soon(server._serve)
        while not server.started:
            await anyio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        agent.url = f"http://127.0.0.1:{port}/v1/data/entroq/authz"
        yield agent
        server.should_exit = True


async def test_the_agent_decides_and_sees_who_wants_what(agent: Agent, tmp_path: Path) -> None:
    async with serving(f"memory://{tmp_path}", agent.url) as (_, client):
        ann, bob, eve = client("ann", "ann-1"), client("bob"), client(None)
        task = await ann.insert("/jobs/a")
        assert agent.asked == [
            {
                "authz": {"type": "Bearer", "credentials": "token of ann"},
                "claimant_id": "ann-1",
                "queues": [{"exact": "/jobs/a", "actions": ["INSERT"]}],
            }
        ]
        with pytest.raises(grpc.aio.AioRpcError, match="may not delete in queue '/jobs/a'"):
            await ann.modify(deletes=[id_of(task)])
        with pytest.raises(grpc.aio.AioRpcError, match="delete in queue '/jobs/a'; insert in queue '/other'"):
            await ann.modify(changes=[changed(task, queue="/other")])
        with pytest.raises(grpc.aio.AioRpcError, match=r"may not insert in queue '/jobs/\.\./other'"):
            await ann.insert("/jobs/../other")
        assert [one.id for one in await bob.tasks("/jobs/a")] == [task.id]
        assert [*await bob.stats()] == ["/jobs/a"]
        assert await eve.stats() == {}
        with pytest.raises(grpc.aio.AioRpcError, match="may not claim"):
            await bob.try_claim("/jobs/a")


async def test_an_answer_is_used_again_for_some_seconds(agent: Agent, tmp_path: Path) -> None:
    async with serving(f"memory://{tmp_path}", agent.url) as (_, client):
        for _ in range(5):
            await client("ann").insert("/jobs/a")
        assert len(agent.asked) == 1
        await client("ann", "another").insert("/jobs/a")
        assert len(agent.asked) == 2


async def test_without_an_answer_nothing_is_allowed(agent: Agent, tmp_path: Path) -> None:
    agent.is_broken = True
    async with serving(f"memory://{tmp_path}", agent.url) as (addresses, client):
        with pytest.raises(grpc.aio.AioRpcError, match="nothing is allowed") as refused:
            await client("ann").insert("/jobs/a")
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        async with httpx.AsyncClient() as plain:
            answer = await plain.get(f"http://{addresses.http}/api/v0/tasks?queue=/jobs/a")
            assert answer.status_code == 503
        agent.is_broken = False
        await client("ann").insert("/jobs/a")
    with pytest.raises(InvalidOption, match="no URL of an Open Policy Agent"):
        await serve("memory://", access="ftp://x")


async def without_end() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await anyio.sleep(0.02)


def odd_answers() -> Iterator[Response]:
    allowed = '{"result": {"allow": true}}'
    for code in (500, 404, 302):
        yield Response(allowed, code, {"location": "/v1/data/other"})
    for text in (
        *("", "true", "[]", "{}", '{"result": true}', '{"result": null}', "[" * 100_000),
        *('{"result": {"allow": "true"}}', '{"result": {"allow": 1}}'),
        '{"result": {"allow": null, "failed": []}}',
        '{"result": {"allow": true, "failed": true}}',
        '{"result": {"allow": true, "failed": [{"exact": "/other", "actions": ["INSERT"]}]}}',
        '{"result": {"allow": true, "failed": [{"exact": "/jobs/a", "actions": ["insert"]}]}}',
        '{"result": {"allow": false, "failed": [{"exact": "/jobs/a", "actions": []}]}}',
    ):
        yield Response(text)
    yield StreamingResponse(without_end())


async def test_an_odd_answer_allows_nothing(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that never end are waited for as long as those that never begin."""
    async with serving(f"memory://{tmp_path}", agent.url) as (_, client):
        for agent.odd in odd_answers():
            if isinstance(agent.odd, StreamingResponse):
                monkeypatch.setattr(_opa, "_PATIENCE", 0.02)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client("ann").insert("/jobs/a")
            assert refused.value.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.PERMISSION_DENIED,
            )


async def test_a_claim_that_waits_outlives_an_agent_that_fails(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the client whose right can't be judged is refused, and what it would have got stays."""
    monkeypatch.setattr(_opa, "_KEPT", 0)
    async with serving(f"memory://{tmp_path}", agent.url) as (_, client):
        ann = client("ann", "waits")

        async def wait() -> None:
            with pytest.raises(grpc.aio.AioRpcError, match="nothing is allowed"):
                await ann.claim("/jobs/a")

        async with Tasks(f"memory://{tmp_path}") as tasks:
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(wait)
                while "entroq:waits" not in {one.id for one in await tasks.sessions()}:
                    await anyio.sleep(0.01)
                agent.is_broken = True
                await tasks.insert("/jobs/a", 1)
            (stats,) = await tasks.queues()
            assert (stats.claimed, stats.ready) == (0, 1)
        agent.is_broken = False
        assert await client("ann", "other").try_claim("/jobs/a") is not None


async def test_the_agent_is_asked_about_every_step_of_a_remote_store(agent: Agent, tmp_path: Path) -> None:
    """Its policy allows ann to insert, and says nothing of sessions or queues that are paced."""
    async with serving(f"memory://{tmp_path}", agent.url) as (addresses, _):
        url = f"intervalq://token%20of%20ann@{addresses.grpc}"
        store, queues = open_task_store(url), open_store(url)
        await store.apply(Modify(inserts=(Insert("/jobs/a", "1", "t"),)))
        for command in (Begin(Session("s")), End("s"), Modify("s", deletes=(Delete("t", 0),))):
            with pytest.raises(Unauthorized, match=r"may not (claim in queue 'session#s'|delete)"):
                await store.apply(command)
        with pytest.raises(Unauthorized, match="may not pace in queue 'q'"):
            await queues.apply("q", Advance(settings=Settings(1), nonce="n"))
        asked = [part for question in agent.asked for part in question["queues"]]
        assert {"exact": "session#s", "actions": ["CLAIM"]} in asked
        assert {"exact": "q", "actions": ["PACE"]} in asked
        agent.is_broken = True
        with pytest.raises(StoreUnavailable):
            await store.apply(Select(queue="/jobs/b"))
        await store.aclose()
        await queues.aclose()

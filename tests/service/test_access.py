"""Who may do what: every action in every queue, by every caller; names that look like others."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import httpx
import pytest

from intervalq.errors import InvalidOption
from intervalq.service import Addresses, serve
from intervalq.service._access import read_access
from intervalq.service._entroq import entroq_pb2 as pb
from service.grpc_client import GrpcClient, Unmet, changed, id_of

RULES = """
[ann]
token_sha256 = "{ann}"
allow = [
  {{ queues = ["/jobs/*"], actions = ["claim", "insert", "change", "delete", "read"] }},
  {{ queues = ["/mail"], actions = ["insert"] }},
]

[bob]
token_sha256 = "{bob}"
allow = [{{ queues = ["/jobs/b", "/mail"], actions = ["read"] }}]
"""
ACTIONS = ("insert", "change", "delete", "read", "claim")  # a claim takes any of the others' tasks
MAY = {
    ("ann", "/jobs/a"): {*ACTIONS},
    ("ann", "/jobs/b"): {*ACTIONS},
    ("ann", "/mail"): {"insert"},
    ("ann", "/other"): set[str](),
    ("bob", "/jobs/a"): set[str](),
    ("bob", "/jobs/b"): {"read"},
    ("bob", "/mail"): {"read"},
    ("bob", "/other"): set[str](),
}


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def access(tmp_path: Path) -> Path:
    file = tmp_path / "access.toml"
    file.write_text(RULES.format(ann=sha256("token of ann"), bob=sha256("token of bob")))
    return file


class WithToken(GrpcClient):
    """A client that sends a token."""

    token: str | None = None

    async def call(self, method: str, request: Any, answer: Any) -> Any:
        verb = self.channel.unary_unary(
            f"/api.EntroQ/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        metadata = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        return await verb(request, timeout=60, metadata=metadata)


@asynccontextmanager
async def serving(
    store: str, access: Path | str | None
) -> AsyncIterator[tuple[Addresses, Callable[..., WithToken]]]:
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(
                store, grpc="127.0.0.1:0", http="127.0.0.1:0", access=access, task_status=task_status, grace=1
            )

        addresses = await group.start(run)
        async with grpc.aio.insecure_channel(addresses.grpc) as channel:

            def client(name: str | None, claimant: str = "me") -> WithToken:
                made = WithToken(channel, claimant)
                made.token = None if name is None else f"token of {name}"
                return made

            yield addresses, client
        group.cancel_scope.cancel()


async def outcome(client: WithToken, action: str, task: pb.Task) -> bool:
    """Whether a caller could do this in the queue of a task."""
    queue = task.queue
    try:
        if action == "claim":
            await client.try_claim(f"{queue}")
        elif action == "insert":
            await client.insert(queue)
        elif action == "change":
            await client.modify(changes=[changed(task)])
        elif action == "delete":
            # What the client says of the queue is not believed.
            await client.modify(deletes=[pb.TaskID(id=task.id, version=task.version, queue="/jobs/a")])
        else:
            await client.tasks(queue)
            await client.modify(depends=[id_of(task)])
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED, error
        return False
    except Unmet:
        return False  # a task of a queue that the caller may not read is missing
    return True


async def test_every_action_in_every_queue_by_everybody(access: Path, tmp_path: Path) -> None:
    """The tasks are inserted without an access file. Each cell of the matrix has tasks of its own."""
    store = f"memory://{tmp_path}"
    cells = [(name, queue, action) for action, (name, queue) in itertools.product(ACTIONS, MAY)]
    async with serving(store, None) as (_, anybody):
        tasks = [await anybody(None).insert(queue) for _, queue, _ in cells]
    async with serving(store, access) as (_, client):
        done = [
            await outcome(client(name), action, task)
            for (name, _, action), task in zip(cells, tasks, strict=True)
        ]
    assert done == [action in MAY[name, queue] for name, queue, action in cells]


async def test_a_change_is_refused_as_a_whole(access: Path, tmp_path: Path) -> None:
    async with serving(f"memory://{tmp_path}", access) as (_, client):
        ann = client("ann")
        task = await ann.insert("/jobs/a")
        with pytest.raises(grpc.aio.AioRpcError, match="the caller may not insert in queue '/other'"):
            await ann.modify(deletes=[id_of(task)], inserts=[pb.TaskData(queue="/other")])
        with pytest.raises(grpc.aio.AioRpcError, match="the caller may not insert in queue '/other'"):
            await ann.modify(changes=[changed(task, queue="/other")])
        assert [one.version for one in await ann.tasks("/jobs/a")] == [0]
        assert [*await ann.stats()] == ["/jobs/a"]
        assert await client("bob").stats() == {}
        assert await client("bob").tasks(ids=[task.id]) == []
        for parts in ({"deletes": [id_of(task)]}, {"depends": [pb.TaskID(id="nowhere")]}):
            with pytest.raises(Unmet):  # neither says what there is
                await client("bob").modify(**parts)
        with pytest.raises(Unmet):
            await client("bob").modify(deletes=[pb.TaskID(id="not yet there", version=0)])


async def test_names_that_look_like_others_are_nobodys(access: Path, tmp_path: Path) -> None:
    looks = ("/jobs/../other", "/jobs/./a", "/jobs//a", "//jobs/a", "/jobs/..", "/Jobs/a", "/jobs", "jobs/a")
    async with serving(f"memory://{tmp_path}", access) as (_, client):
        for name in looks:
            with pytest.raises(grpc.aio.AioRpcError, match="may not insert"):
                await client("ann").insert(name)
        for name in ("/jobs/\u0430", "/jobs/*", "/jobs/a\n", "/jobs/a "):
            with pytest.raises(grpc.aio.AioRpcError, match="is not a queue name"):
                await client("ann").insert(name)


async def test_nobody_uses_the_claims_of_somebody_else(access: Path, tmp_path: Path) -> None:
    """Both call themselves `me`, and one knows how the service distinguishes them."""
    access.write_text(
        access.read_text().replace(
            '"/jobs/b", "/mail"], actions = ["read"]', '"/jobs/a"], actions = ["claim", "delete", "read"]'
        )
    )
    async with serving(f"memory://{tmp_path}", access) as (_, client):
        await client("ann").insert("/jobs/a")
        task = await client("ann").try_claim("/jobs/a")
        assert task is not None
        for claimant in ("me", "ann#me", "bob#me", task.claimant_id):
            with pytest.raises(Unmet):
                await client("bob", claimant).modify(deletes=[id_of(task)])
        await client("ann", task.claimant_id).modify(deletes=[id_of(task)])


async def test_without_a_token_nothing_is_answered_but_the_health(access: Path, tmp_path: Path) -> None:
    async with serving(f"memory://{tmp_path}", access) as (addresses, client):
        for name in (None, "eve", ""):
            with pytest.raises(grpc.aio.AioRpcError, match="give a valid token"):
                await client(name).tasks("/jobs/a")
        async with httpx.AsyncClient(base_url=f"http://{addresses.http}") as plain:
            where = "/api/v0/tasks?queue=/jobs/a"
            for header in ("", "Basic eA==", "Bearer", "Bearer nobody"):
                assert (await plain.get(where, headers={"Authorization": header})).status_code == 401
            good = {"Authorization": "Bearer token of ann"}
            assert (await plain.get(where, headers=good)).status_code == 200
            denied = await plain.get("/api/v0/tasks?queue=/other", headers=good)
            assert denied.status_code == 403
            assert denied.json()["details"][0]["exact"] == "/other"
            assert (await plain.get("/healthz")).text == "ok\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names nobody"),
        ("= 1", "not TOML"),
        ("[a]\n", "needs token_sha256"),
        ('[a]\ntoken_sha256 = "x"\nallow = []\n', "64 hex digits"),
        ('["a b"]\ntoken_sha256 = "HASH"\nallow = []\n', "name of letters"),
        ('[a]\ntoken_sha256 = "HASH"\nallow = [1]\n', "a rule has"),
        ('[a]\ntoken_sha256 = "HASH"\nallow = [{queues = ["/a*b"], actions = ["read"]}]\n', "neither"),
        (
            '[a]\ntoken_sha256 = "HASH"\nallow = [{queues = ["/a"], actions = ["write"]}]\n',
            "is not an action; there are claim",
        ),
        ('[a]\ntoken_sha256 = "HASH"\nallow = []\n[b]\ntoken_sha256 = "HASH"\nallow = []\n', "same token"),
    ],
)
def test_an_access_file_that_says_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text.replace("HASH", sha256("x")))
    with pytest.raises(InvalidOption, match=said):
        read_access(file)


def test_an_access_file_that_others_may_write_is_refused(access: Path, tmp_path: Path) -> None:
    access.chmod(0o664)
    with pytest.raises(InvalidOption, match="chmod go-w"):
        read_access(access)
    with pytest.raises(InvalidOption, match="can't be read"):
        read_access(tmp_path / "none.toml")


async def of_doc(client: WithToken, action: str, namespace: str, id_: str) -> bool:
    """Whether a caller could do this in a namespace of docs."""
    doc = pb.DocID(namespace=namespace, id=id_)
    claim = pb.ClaimDocsRequest(claim_query=pb.DocClaim(namespace=namespace, key="k", claimant="me"))
    parts: dict[str, dict[str, object]] = {
        "insert": {"doc_inserts": [pb.DocData(namespace=namespace)]},
        "change": {"doc_changes": [pb.DocChange(old_id=doc)]},
        "delete": {"doc_deletes": [doc]},
        "read": {"doc_depends": [doc]},
    }
    try:
        if action == "claim":
            await client.call("ClaimDocs", claim, pb.ClaimDocsResponse)
            return True
        await client.modify(**parts[action])
        if action == "read":
            query = pb.DocsRequest(query=pb.DocQuery(namespace=namespace))
            await client.call("Docs", query, pb.DocsResponse)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED, error
        return False
    except Unmet:
        return False  # a doc of a namespace that the caller may not read is missing
    return True


async def test_every_action_in_every_namespace_of_docs_by_everybody(access: Path, tmp_path: Path) -> None:
    """A right on a queue is none on docs, whose names are `docs#NAMESPACE`."""
    access.write_text(
        access.read_text().replace('["/jobs/*"]', '["docs#/jobs/*"]').replace("/mail", "docs#/mail")
    )
    may = {("ann", "/jobs/a"): {*ACTIONS}, ("ann", "/mail"): {"insert"}, ("bob", "/mail"): {"read"}}
    names = ("/jobs/a", "/jobs/../other", "/jobs//a", "/jobs/..", "/Jobs/a", "/jobs/b", "/mail", "/other")
    cells = [*itertools.product(("ann", "bob"), names, ACTIONS)]
    may["ann", "/jobs/b"] = {*ACTIONS}  # bob may read tasks there
    async with serving(f"memory://{tmp_path}", None) as (_, anybody):
        for number, (_, namespace, _) in enumerate(cells):
            await anybody(None).modify(doc_inserts=[pb.DocData(namespace=namespace, id=f"{number}", key="k")])
    async with serving(f"memory://{tmp_path}", access) as (_, client):
        order = sorted(
            range(len(cells)), key=lambda number: cells[number][2] == "claim"
        )  # it changes versions
        done = {cells[n]: await of_doc(client(cells[n][0]), *cells[n][:0:-1], f"{n}") for n in order}
        assert done == {cell: cell[2] in may.get(cell[:2], ()) for cell in cells}
        # Of one change no part is done, and the numbers are only those of what may be read.
        data = [pb.DocData(namespace=one, id="new") for one in ("/jobs/a", "/other")]
        with pytest.raises(grpc.aio.AioRpcError, match="may not insert in queue 'docs#/other'"):
            await client("ann").modify(doc_inserts=data)
        for name, seen in (("ann", ["/jobs/a", "/jobs/b"]), ("bob", ["/mail"])):
            stats = await client(name).call("NamespaceStats", pb.NamespacesRequest(), pb.NamespacesResponse)
            assert [one.name for one in stats.namespaces] == seen


async def test_nobody_uses_the_claims_of_docs_of_somebody_else(access: Path, tmp_path: Path) -> None:
    access.write_text(access.read_text().replace("/jobs/b", "docs#/jobs/a").replace('"/jobs/*"', '"docs#/*"'))
    rules = access.read_text().replace('actions = ["read"]', 'actions = ["read", "claim", "delete"]')
    access.write_text(rules)
    async with serving(f"memory://{tmp_path}", access) as (_, client):
        await client("ann").modify(doc_inserts=[pb.DocData(namespace="/jobs/a", id="1", key="k")])
        query = pb.DocClaim(namespace="/jobs/a", key="k", claimant="me")
        request = pb.ClaimDocsRequest(claim_query=query)
        (doc,) = (await client("ann").call("ClaimDocs", request, pb.ClaimDocsResponse)).docs
        name = pb.DocID(namespace="/jobs/a", id="1", version=doc.version)
        for claimant in ("me", "ann#me", "bob#me", doc.claimant):
            with pytest.raises(Unmet):
                await client("bob", claimant).modify(doc_deletes=[name])
            request.claim_query.claimant = claimant
            with pytest.raises(grpc.aio.AioRpcError, match="are claimed by another"):
                await client("bob").call("ClaimDocs", request, pb.ClaimDocsResponse)
        await client("ann", doc.claimant).modify(doc_deletes=[name])

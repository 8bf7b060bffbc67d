"""A gRPC server that does nothing of its own: what a call costs in Python at least.

`aio` and `threads` give at once an answer as long as that of the service. `store` gives each call to a store, as the
command that it means, and nothing more: it checks nothing, and answers only what the client needs. Run by `service.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.struct_pb2 import Value

from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import NAME
from intervalq.tasks.rules import SECOND, Begin, Delete, Insert, Modify, Session, Work
from intervalq.tasks.store import open_task_store

_NOW: Final = 1_800_000_000_000
_TASK: Final = pb.Task(
    queue="served-10",
    id="0123456789abcdef",
    version=1,
    at_ms=_NOW,
    claimant_id="client-10",
    created_ms=_NOW,
    modified_ms=_NOW,
    claims=1,
    value=Value(number_value=1),
)
_ANSWERS: Final = {
    "Modify": pb.ModifyResponse(inserted=[_TASK]).SerializeToString(),
    "TryClaim": pb.ClaimResponse(task=_TASK).SerializeToString(),
}

Methods = Mapping[str, Any]


def _handler(methods: Methods) -> grpc.GenericRpcHandler:
    found = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(NAME, found)


def _say(port: int) -> None:
    print(json.dumps({"grpc": f"127.0.0.1:{port}"}), flush=True)


def _at_once(said: bytes) -> Any:  # noqa: ANN401 - a method of gRPC
    async def answer(request: bytes, context: object) -> bytes:
        del request, context
        return said

    return answer


def _of_store(url: str) -> Methods:
    store, known = open_task_store(url), set[str]()

    async def modify(raw: bytes, context: object) -> bytes:
        del context
        request = pb.ModifyRequest.FromString(raw)
        me = request.claimant_id
        if me not in known:
            known.add(me)
            await store.apply(Begin(Session(me, expiry=3_600 * SECOND)))
        inserts = tuple([Insert(one.queue, "1", one.id) for one in request.inserts])
        deletes = tuple([Delete(one.id, one.version) for one in request.deletes])
        await store.apply(Modify(session=me, inserts=inserts, deletes=deletes))
        inserted = [pb.Task(queue=one.queue, id=one.id) for one in inserts]
        return pb.ModifyResponse(inserted=inserted).SerializeToString()

    async def claim(raw: bytes, context: object) -> bytes:
        del context
        request = pb.ClaimRequest.FromString(raw)
        work = Work(request.claimant_id, queues=tuple(request.queues), limit=1, lease=30 * SECOND)
        (row,) = (await store.apply(work)).claimed
        return pb.ClaimResponse(
            task=pb.Task(queue=row.queue, id=row.id, version=row.version)
        ).SerializeToString()

    return {"Modify": modify, "TryClaim": claim}


async def _aio(url: str | None) -> None:
    server = grpc.aio.server()
    methods = {name: _at_once(said) for name, said in _ANSWERS.items()} if url is None else _of_store(url)
    server.add_generic_rpc_handlers((_handler(methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _say(port)
    await server.wait_for_termination()


def _threads() -> None:
    server = grpc.server(ThreadPoolExecutor(16))
    methods = {name: lambda *_, said=said: said for name, said in _ANSWERS.items()}
    server.add_generic_rpc_handlers((_handler(methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _say(port)
    server.wait_for_termination()


if __name__ == "__main__":
    _threads() if sys.argv[1] == "threads" else asyncio.run(_aio(dict(enumerate(sys.argv)).get(2)))

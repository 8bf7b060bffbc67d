"""A gRPC server that answers at once what it always answers: what a call costs in Python at least.

The answers are as long as those of the service to the calls of `service.py`. Run by it, with `aio` or `threads`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.struct_pb2 import Value

from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import NAME

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


def _handler(answered: Callable[[bytes], Any]) -> grpc.GenericRpcHandler:
    methods = {name: grpc.unary_unary_rpc_method_handler(answered(said)) for name, said in _ANSWERS.items()}
    return grpc.method_handlers_generic_handler(NAME, methods)


def _say(port: int) -> None:
    print(json.dumps({"grpc": f"127.0.0.1:{port}"}), flush=True)


async def _aio() -> None:
    def answered(said: bytes) -> Any:  # noqa: ANN401 - a method of gRPC
        async def answer(request: bytes, context: object) -> bytes:
            del request, context
            return said

        return answer

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handler(answered),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _say(port)
    await server.wait_for_termination()


def _threads() -> None:
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((_handler(lambda said: lambda request, context: said),))  # noqa: ARG005 - a method of gRPC
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _say(port)
    server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_aio()) if sys.argv[1] == "aio" else _threads()

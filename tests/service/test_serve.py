"""The life of a service: where it listens, how it ends, certificates, and the command that runs it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import anyio
import grpc
import grpc.aio
import grpc_tools
import httpx
import pytest
import trustme
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

from cli.command_line import CommandLine
from intervalq.errors import InvalidOption
from intervalq.service import Addresses, Tls, serve
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.tasks import Tasks
from service.grpc_client import GrpcClient, id_of

MESSAGES = Path(pb.__file__)


def test_the_messages_are_made_from_the_interface(tmp_path: Path) -> None:
    """They say the same, whichever compiler has made them: it writes its version into its files."""
    out = tmp_path / "set"
    folders = MESSAGES.parent, Path(grpc_tools.__file__).parent / "_proto"
    includes = [f"-I{folder}" for folder in folders]
    assert protoc.main(["", *includes, f"--descriptor_set_out={out}", "entroq.proto"]) == 0
    (made,) = FileDescriptorSet.FromString(out.read_bytes()).file
    kept = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(kept)
    for file in (made, kept):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")  # only one of them says it
    assert made == kept


async def test_it_says_that_it_is_healthy_and_what_it_has(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(f"memory://{tmp_path}", grpc="localhost:0", http=None, task_status=task_status)

        addresses = await group.start(run)
        assert addresses.http is None
        async with grpc.aio.insecure_channel(addresses.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(service="api.EntroQ"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            async for found in stub.ServerReflectionInfo(iter([asked])):
                names = {one.name for one in found.list_services_response.service}
                assert {"api.EntroQ", "intervalq.v1.Store"} <= names
        group.cancel_scope.cancel()


async def test_at_the_end_claims_stop_waiting_and_the_store_is_closed(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/app.db"
    refused: list[grpc.StatusCode] = []
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        ended = anyio.Event()

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            with scope:
                await serve(store, grpc="127.0.0.1:0", http="127.0.0.1:0", task_status=task_status)
            ended.set()

        addresses = await group.start(run)
        channel = grpc.aio.insecure_channel(addresses.grpc)
        client = GrpcClient(channel, "me")

        async def wait() -> None:
            with pytest.raises(grpc.aio.AioRpcError, match="the service stops") as error:
                await client.claim("q")
            refused.append(error.value.code())

        async def wait_over_http() -> None:
            async with httpx.AsyncClient() as plain:
                asked = {"claimantId": "it", "queues": ["q"]}
                answer = await plain.post(f"http://{addresses.http}/api/v0/claim/wait", json=asked)
            assert answer.status_code == 503

        async with anyio.create_task_group() as waiting:
            waiting.start_soon(wait)
            waiting.start_soon(wait_over_http)
            async with Tasks(store) as tasks:
                while {f"entroq:{name}" for name in ("me", "it")} - {
                    one.id for one in await tasks.sessions()
                }:
                    await anyio.sleep(0.01)
            scope.cancel()
        assert refused == [grpc.StatusCode.UNAVAILABLE]
        await ended.wait()
        await channel.close()


async def test_where_a_service_can_not_listen(tmp_path: Path) -> None:
    store = f"memory://{tmp_path}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        there = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidOption, match="can't listen"):
            await serve(store, grpc=None, http=there)
        with pytest.raises(InvalidOption, match="can't listen"):
            await serve(store, grpc=there, http=None)
    for address, said in (
        ("0.0.0.0:0", "other machines"),
        ("[::]:0", "other machines"),
        ("host.example:1", "other machines"),
        ("127.0.0.1", "host:port"),
        (":1", "host:port"),
        ("127.0.0.1:70000", "host:port"),
    ):
        with pytest.raises(InvalidOption, match=said):
            await serve(store, grpc=address, http=None)


async def test_certificates_of_the_service_and_of_its_clients(tmp_path: Path) -> None:
    """Who doesn't know the authority, or has no certificate where one is asked for, gets no answer."""
    known, unknown = trustme.CA(), trustme.CA()
    names = {}
    for name, made in (
        ("ca", [known.cert_pem]),
        ("other", [unknown.cert_pem]),
        ("server", known.issue_cert("localhost").cert_chain_pems),
    ):
        names[name] = str(tmp_path / f"{name}.pem")
        made[0].write_to_path(names[name])
    server, mine, foreign = (
        known.issue_cert("localhost"),
        known.issue_cert("me@x.org"),
        unknown.issue_cert("it@x.org"),
    )
    server.private_key_pem.write_to_path(names["server"] + ".key")
    server.cert_chain_pems[0].write_to_path(names["server"])
    tls = Tls(names["server"], names["server"] + ".key", names["ca"])
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            await serve(
                f"memory://{tmp_path}",
                grpc="localhost:0",
                http="localhost:0",
                tls=tls,
                task_status=task_status,
            )

        addresses = await group.start(run)
        for authority, shown, is_answered in (
            (known, mine, True),
            (known, None, False),
            (known, foreign, False),
            (unknown, mine, False),
        ):
            pems: tuple[bytes, ...] = (authority.cert_pem.bytes(),)
            if shown is not None:
                pems += (shown.private_key_pem.bytes(), shown.cert_chain_pems[0].bytes())
            credentials = grpc.ssl_channel_credentials(*pems)
            async with grpc.aio.secure_channel(addresses.grpc, credentials) as channel:
                client = GrpcClient(channel, "me")
                if is_answered:
                    await client.insert("q")
                    continue
                with pytest.raises(grpc.aio.AioRpcError):
                    await client.insert("q")
        async with httpx.AsyncClient(verify=False) as plain:
            with pytest.raises(httpx.HTTPError):  # without a certificate of its own
                await plain.get(f"https://{addresses.http}/healthz")
        group.cancel_scope.cancel()
    with pytest.raises(InvalidOption, match="can't be used"):
        await serve(grpc="0.0.0.0:0", tls=Tls(names["other"], names["server"] + ".key"), insecure=True)


async def test_what_was_acknowledged_survives_a_kill_and_another_service_goes_on(
    intervalq: CommandLine,
) -> None:
    """The process is killed with a claim held and another waiting; a signal ends its successor cleanly."""

    async def started() -> tuple[subprocess.Popen[str], str]:
        args = ("serve", "--store", "app.db", "--grpc", "127.0.0.1:0", "--http", "none", "--json")
        process = intervalq.start(*args)
        assert process.stdout is not None
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        return process, json.loads(line)["grpc"]

    process, address = await started()
    async with grpc.aio.insecure_channel(address) as channel:
        client = GrpcClient(channel, "me")
        names = [f"task-{number}" for number in range(50)]
        await client.modify(inserts=[pb.TaskData(queue="q", id=name) for name in names])
        mine = await client.try_claim("q")
        assert mine is not None
        process.kill()
        process.wait()
    process, address = await started()
    async with grpc.aio.insecure_channel(address) as channel:
        client = GrpcClient(channel, "me")
        assert sorted(one.id for one in await client.tasks("q")) == sorted(names)
        await client.modify(deletes=[id_of(mine)])  # still its claim, at the other service
        assert (await client.stats())["q"].num_tasks == 49
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert "a second signal ends them" in process.stderr.read()


def test_what_the_command_refuses(intervalq: CommandLine) -> None:
    for args, said in (
        (("--grpc", "none", "--http", "none"), "nothing to serve"),
        (("--grpc", "0.0.0.0:1"), "other machines"),
        (("--tls-cert", "x"), "together"),
        (("--access", "none.toml"), "can't be read"),
        (("--store", "nope://x"), "no store"),
    ):
        ended = intervalq._here(("serve", *args))
        assert (ended.code, said in ended.stderr) == (2, True), ended

"""Envoy's rate limit service: a real Envoy before a server that counts, and the service by itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import httpx
import pytest
from anyio.abc import SocketStream

from intervalq.errors import InvalidOption
from intervalq.service import Addresses, serve
from intervalq.service._envoy import ratelimit_pb2 as pb
from intervalq.service._envoy.limits import read_limits
from service.test_remote_access import access_of

LIMITS = """
[[limit]]
domain = "edge"
match = { tenant = "*" }
queue = "edge"
key = "tenant"
rate = "100/s"
each = "50/s"
wait = "1m"

[[limit]]
domain = "edge"
match = { path = "/once" }
queue = "once"
rate = "1/h"
burst = 3
"""


@asynccontextmanager
async def serving(folder: Path, text: str = LIMITS, access: Path | None = None) -> AsyncIterator[str]:
    """The address of a service with these limits."""
    file = folder / "limits.toml"
    file.write_text(text)
    async with anyio.create_task_group() as group:

        async def run(*, task_status: anyio.abc.TaskStatus[Addresses]) -> None:
            store = f"sqlite://{folder}/app.db"
            here = "127.0.0.1:0"
            await serve(store, grpc=here, http=None, envoy=file, access=access, task_status=task_status)

        addresses = await group.start(run)
        assert addresses.grpc is not None
        yield addresses.grpc
        group.cancel_scope.cancel()


async def ask(
    address: str, *descriptors: dict[str, str], domain: str = "edge", hits: int = 0, token: str | None = None
) -> Any:
    request = pb.RateLimitRequest(
        domain=domain,
        hits_addend=hits,
        descriptors=[
            pb.Descriptor(entries=[pb.Descriptor.Entry(key=key, value=value) for key, value in one.items()])
            for one in descriptors
        ],
    )
    async with grpc.aio.insecure_channel(address) as channel:
        verb = channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            request_serializer=pb.RateLimitRequest.SerializeToString,
            response_deserializer=pb.RateLimitResponse.FromString,
        )
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        return await verb(request, timeout=60, metadata=metadata)


async def test_a_descriptor_takes_slots_of_its_queue(tmp_path: Path) -> None:
    """The cost is the number of slots; a refusal says when to come again, and takes nothing."""
    ok, over = pb.RateLimitResponse.OK, pb.RateLimitResponse.OVER_LIMIT
    async with serving(tmp_path) as address:
        for hits in (2, 1):
            assert (await ask(address, {"path": "/once"}, hits=hits)).overall_code == ok
        for _ in range(2):
            refused = await ask(address, {"path": "/once"}, {"nobody": "limits this"})
            assert refused.overall_code == over
            assert [one.code for one in refused.statuses] == [over, ok]
            assert 3_000 < refused.statuses[0].duration_until_reset.seconds <= 3_605
            (header,) = refused.response_headers_to_add
            assert (header.key, 3_000 < int(header.value) <= 3_605) == ("retry-after", True)
        for free in ({"path": "/other"}, {"path": "/once", "more": "x"}):
            assert (await ask(address, free)).overall_code == ok
        assert (await ask(address, {"path": "/once"}, domain="other")).overall_code == ok
        with pytest.raises(grpc.aio.AioRpcError, match="is not a key"):
            await ask(address, {"tenant": ""})
        with pytest.raises(grpc.aio.AioRpcError, match="above 1000"):
            await ask(address, {"path": "/once"}, hits=1_001)


class Upstream:
    """A server behind a proxy: it notes when each tenant's requests come."""

    def __init__(self) -> None:
        self.came: list[tuple[str, float]] = []

    async def answer(self, stream: SocketStream) -> None:
        async with stream:
            read = b""
            while True:
                while b"\r\n\r\n" not in read:
                    try:
                        read += await stream.receive()
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        return
                head, _, read = read.partition(b"\r\n\r\n")
                fields = dict(line.split(": ", 1) for line in head.decode().lower().splitlines()[1:])
                self.came.append((fields.get("x-tenant", ""), anyio.current_time()))
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def cluster(name: str, port: int, **more: Any) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address}}]}
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {"cluster_name": name, "endpoints": [endpoint]},
        **more,
    }


def bootstrap(port: int, upstream: int, service: int) -> dict[str, Any]:
    """Envoy's configuration: each request asks the service, by its tenant and by its path."""
    api = "type.googleapis.com/envoy.extensions"
    http2 = {
        "@type": f"{api}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    ask_service = {
        "@type": f"{api}.filters.http.ratelimit.v3.RateLimit",
        "domain": "edge",
        "failure_mode_deny": True,
        "timeout": "60s",
        "rate_limit_service": {
            "grpc_service": {"envoy_grpc": {"cluster_name": "intervalq"}},
            "transport_api_version": "V3",
        },
    }
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": "upstream", "timeout": "60s"},
    }
    asked = [
        {"actions": [{"request_headers": {"header_name": "x-tenant", "descriptor_key": "tenant"}}]},
        {"actions": [{"request_headers": {"header_name": ":path", "descriptor_key": "path"}}]},
    ]
    manager = {
        "@type": f"{api}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "edge",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route], "rate_limits": asked}]
        },
        "http_filters": [
            {"name": "ratelimit", "typed_config": ask_service},
            {"name": "router", "typed_config": {"@type": f"{api}.filters.http.router.v3.Router"}},
        ],
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    extension = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}
    return {
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                cluster("upstream", upstream),
                cluster("intervalq", service, typed_extension_protocol_options=extension),
            ],
        }
    }


async def all_of(client: httpx.AsyncClient, requests: Sequence[tuple[str, str]]) -> Counter[int]:
    codes: Counter[int] = Counter()

    async def get(path: str, tenant: str) -> None:
        codes[(await client.get(path, headers={"x-tenant": tenant})).status_code] += 1

    async with anyio.create_task_group() as group:
        for path, tenant in requests:
            group.start_soon(get, path, tenant)
    return codes


async def test_a_right_on_a_queue_is_one_on_its_keys(tmp_path: Path) -> None:
    """Strangers learn nothing, not even what a descriptor may be."""
    access = tmp_path / "access.toml"
    access.write_text(access_of({"pace": [("pace", ["edge"])], "other": [("pace", ["edge-2", "edge:ann"])]}))
    async with serving(tmp_path, access=access) as address:
        answer = await ask(address, {"tenant": "ann"}, token="token of pace")
        assert answer.overall_code == pb.RateLimitResponse.OK
        for token, code in ((None, "UNAUTHENTICATED"), ("token of other", "PERMISSION_DENIED")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(address, {"tenant": "ann"}, token=token)
            assert refused.value.code() == grpc.StatusCode[code]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(address, *({"tenant": f"{n}"} for n in range(99)))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_real_envoy_paces_requests_instead_of_refusing_them(tmp_path: Path) -> None:
    """Two tenants send eight requests each, all answered; what may be called thrice is then refused."""
    upstream = Upstream()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port, behind = free_port(), listener.extra(anyio.abc.SocketAttribute.local_port)
    async with serving(tmp_path) as address, anyio.create_task_group() as group:
        group.start_soon(listener.serve, upstream.answer)
        config = json.dumps(bootstrap(port, behind, int(address.rpartition(":")[2])))
        program = [
            str(Path(sys.executable).with_name("envoy")),
            "--config-yaml",
            config,
            "--log-level",
            "error",
        ]
        envoy = subprocess.Popen(  # noqa: ASYNC220 - it is ended in any case
            [*program, "--concurrency", "1", "--disable-hot-restart"], stderr=subprocess.PIPE, text=True
        )
        try:
            transport = httpx.AsyncHTTPTransport(retries=200)  # until it listens
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=60
            ) as client:
                codes = await all_of(client, [("/", tenant) for tenant in ("ann", "bob") for _ in range(8)])
                assert codes == {200: 16}
                assert Counter(tenant for tenant, _ in upstream.came) == {"ann": 8, "bob": 8}
                for name in ("ann", "bob"):
                    times = [time for tenant, time in upstream.came if tenant == name]
                    # The first may be late on its way, so that the others seem to follow closer.
                    assert times[-1] - times[1] > 5 * 0.02
                assert await all_of(client, [("/once", "ann")] * 6) == {200: 3, 429: 3}
                assert len(upstream.came) == 19
        finally:
            envoy.kill()
            envoy.communicate()
        group.cancel_scope.cancel()
    await listener.aclose()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tables"),
        ("x", "not TOML"),
        ("[[limit]]\ndomain = 'd'", "needs domain, match and queue"),
        ("[[limit]]\ndomain = 'd'\nqueue = 'q'\nmatch = { a = '*' }\nodd = 1", "may have"),
        ("[[limit]]\ndomain = 'd'\nqueue = 'q'\nmatch = {}", "names the entries"),
        ("[[limit]]\ndomain = 'd'\nqueue = 'q'\nmatch = { a = 'x' }\nkey = 'a'", "not an entry"),
        ("[[limit]]\ndomain = 'd'\nqueue = 'no queue'\nmatch = { a = '*' }", "is not a queue name"),
        ("[[limit]]\ndomain = 'd'\nqueue = 'q'\nmatch = { a = '*' }\nrate = 'fast'", "limit 1"),
        (
            "[[limit]]\ndomain = 'd'\nqueue = 'q'\nmatch = { a = '*' }\nrate = '1/s'\neach = '1/s'",
            "set key=",
        ),
    ],
)
def test_limits_that_say_something_else_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(text)
    with pytest.raises(InvalidOption, match=said):
        read_limits(file, "memory://")


async def test_limits_need_the_grpc_service_and_a_store_of_queues(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="over gRPC"):
        await serve("memory://", grpc=None, envoy=tmp_path / "x")
    with pytest.raises(InvalidOption, match="can't be read"):
        await serve("memory://", envoy=tmp_path / "x")

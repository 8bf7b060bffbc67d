"""The life of a service: its servers start, say that they are healthy, and end after their last answers."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import grpc.aio
import uvicorn
from anyio.abc import TaskStatus
from grpc import ssl_server_credentials
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from intervalq._queue.options import Duration, wait_of
from intervalq.errors import InvalidOption, short
from intervalq.service._access import Access, FileAccess, read_access
from intervalq.service._connections import MAX_CONNECTIONS, Connection
from intervalq.service._entroq.methods import NAME as ENTROQ
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._envoy import over_grpc as ratelimit
from intervalq.service._envoy.limits import Limit, read_limits
from intervalq.service._grpc import Registrar
from intervalq.service._http import MAX_BYTES, NoPages, is_here, no_route
from intervalq.service._measures import measure
from intervalq.service._opa import Opa
from intervalq.service._parts import Parts
from intervalq.service._remote.over_grpc import NAME as REMOTE
from intervalq.service._remote.stores import Stores
from intervalq.service._tls import Keys, Tls
from intervalq.tasks.store import TaskStore


class Addresses(NamedTuple):
    """Where a service listens, as `host:port`; None: not at all."""

    grpc: str | None
    http: str | None


class Place(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_NOBODY: Final = anyio.TASK_STATUS_IGNORED
_NAMES: Final = (ENTROQ, REMOTE)
"""The gRPC services whose health is reported."""
_KEEPALIVE: Final = 15_000
"""Milliseconds of silence after which a gRPC client is pinged, and for which its answer is awaited."""
_MAX_REQUESTS: Final = 20_000
"""The maximum number of gRPC requests at a time, waiting ones included; further ones are refused."""


async def serve(
    store: str | TaskStore | None = None,
    *,
    grpc: str | None = "127.0.0.1:37706",
    http: str | None = "127.0.0.1:9100",
    envoy: str | os.PathLike[str] | None = None,
    access: str | os.PathLike[str] | None = None,
    logs: Iterable[str | os.PathLike[str]] = (),
    tls: Tls | None = None,
    insecure: bool = False,
    grace: Duration = 10,
    task_status: TaskStatus[Addresses] = _NOBODY,
) -> None:
    """Serve a store to clients of EntroQ and Envoy, and to stores `intervalq://`, until cancelled.

    The service keeps nothing itself: any number of them may serve one store, and a client may go on with
    another. With port 0 the system chooses a free one.

    Args:
        store: the URL of a store of tasks, whose queues, ledgers and schedules are served, too; or a store of
            tasks alone, which stays open at the end. None: those of `Tasks`, `IntervalQueue` and `Schedules`.
        grpc: the address of the gRPC service, as `host:port`; None: no such service.
        http: the address of the HTTP/JSON service; None: no such service.
        envoy: a file of limits: the gRPC service then answers Envoy's rate limit requests, too, by queues in
            the same store. See `docs/service.md`. None: it doesn't.
        access: an access file, which says who may do what, by bearer tokens; or the URL of an Open Policy
            Agent that says so. See `docs/service.md`. None: whoever reaches an address may read, change and
            delete every task.
        logs: files that queues write with `log=`: its page shows gaps, lateness, unused slots and refusals by
            them.
        tls: certificates; None: no encryption.
        insecure: listen on other addresses than this machine's own even without `access` or `tls`.
        grace: how long running requests may go on after the end has begun. Claims that wait end at once.
        task_status: told the addresses once the service is ready (`await group.start(serve, url)`).

    Raises:
        InvalidOption: an address is malformed or can't be had, `access` or `tls` can't be used, or others
            could reach an address without them.
        UnknownStore, StoreError: the store can't be used.
    """
    seconds = wait_of(grace) or 0.0
    is_open = insecure or (access is not None and tls is not None)
    places = [None if address is None else _place(address, is_open) for address in (grpc, http)]
    who = None if access is None else _access(access)
    keys = None if tls is None else tls.read()
    stores = Stores.opened(store)
    limits = [] if envoy is None else _limits(envoy, stores, grpc)
    parts = Parts(stores, who, [Path(log) for log in logs])
    try:
        with ExitStack() as stack:
            # First what may fail, outside of any group of tasks.
            bound = None if places[1] is None else stack.enter_context(_bound(places[1]))
            server = None if places[0] is None else _grpc_server(parts, limits, who, places[0], keys)
            app: ASGIApp = Starlette(
                routes=[*map(measure, parts.routes()), _HEALTH], exception_handlers={HTTPException: no_route}
            )
            if who is None:
                app = NoPages(app, fronted=insecure)
            async with (
                _waiting(parts.verbs),
                _grpc(parts, server, seconds) as grpc_address,
                _http(parts, app, bound, tls, seconds) as http_address,
            ):
                task_status.started(Addresses(grpc_address, http_address))
                try:
                    await anyio.sleep_forever()
                finally:
                    parts.close()
                    if server is not None:  # both stop at the same time; this one is awaited later
                        stopping = asyncio.ensure_future(server[0].stop(seconds))
                        stack.callback(stopping.cancel)
    finally:
        with anyio.CancelScope(shield=True):
            if isinstance(who, Opa):
                await who.aclose()
            for limit in limits:
                await limit.queue.close(drain=False)
            await parts.aclose()


async def _healthy(request: Request) -> Response:
    del request
    return PlainTextResponse("ok\n")


_HEALTH: Final = Route("/healthz", _healthy, methods=["GET"])


def _access(access: str | os.PathLike[str]) -> FileAccess | Opa:
    return Opa(access) if isinstance(access, str) and "://" in access else read_access(access)


def _limits(path: str | os.PathLike[str], stores: Stores, grpc: str | None) -> list[Limit]:
    if grpc is None:
        raise InvalidOption("Envoy asks over gRPC: give grpc= an address with envoy=")
    if stores.queues is None:
        raise InvalidOption("envoy= needs queues beside the tasks: give the store's URL")
    return read_limits(path, stores.url)


@asynccontextmanager
async def _waiting(verbs: Verbs) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        await group.start(verbs.waiting.run)
        yield
        group.cancel_scope.cancel()


def _grpc_server(
    parts: Parts, limits: list[Limit], access: Access | None, place: Place, keys: Keys | None
) -> tuple[grpc.aio.Server, Place]:
    """A server that doesn't run yet, and where it will listen."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_BYTES),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients see that a stream is dead
            # A client that is stopped answers no pings: its connection, and all that waits for it, ends.
            ("grpc.keepalive_time_ms", _KEEPALIVE),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.ping_timeout_ms", _KEEPALIVE),
            ("grpc.server_handshake_timeout_ms", _KEEPALIVE),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ],
        maximum_concurrent_rpcs=_MAX_REQUESTS,
    )
    takes: Any = Registrar(server)
    takes.add_generic_rpc_handlers(parts.handlers())
    if limits:
        takes.add_generic_rpc_handlers((ratelimit.handler(limits, access),))
    names = *_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
        reflection.aio.ReflectionServicer(names), takes
    )
    try:
        if keys is None:
            port = server.add_insecure_port(str(place))
        else:
            credentials = ssl_server_credentials(
                [(keys.key, keys.cert)], keys.client_ca, require_client_auth=keys.client_ca is not None
            )
            port = server.add_secure_port(str(place), credentials)
    except RuntimeError as error:
        raise InvalidOption(f"can't listen at {place}: is another program there?") from error
    return server, Place(place.host, port)


@asynccontextmanager
async def _grpc(
    parts: Parts, server_at: tuple[grpc.aio.Server, Place] | None, grace: float
) -> AsyncIterator[str | None]:
    if server_at is None:
        yield None
        return
    server, place = server_at
    checks = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - it is set while running
    health_pb2_grpc.add_HealthServicer_to_server(checks, Registrar(server))
    await server.start()
    for name in ("", *_NAMES):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield str(place)
    finally:
        with anyio.CancelScope(shield=True):
            await checks.enter_graceful_shutdown()
            parts.close()
            await server.stop(grace)


class _Server(uvicorn.Server):
    """A server that leaves signals to the program that runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _http(
    parts: Parts, app: ASGIApp, bound: socket.socket | None, tls: Tls | None, grace: float
) -> AsyncIterator[str | None]:
    if bound is None:
        yield None
        return
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=Connection,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(grace)),
        **({} if tls is None else tls.options()),
    )
    server = _Server(config)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            with anyio.CancelScope(shield=True):
                await server.serve(sockets=[bound])

        group.start_soon(run)
        while not server.started:  # noqa: ASYNC110 - uvicorn has no other sign of it
            await anyio.sleep(0.01)
        try:
            yield str(Place(*bound.getsockname()[:2]))
        finally:
            parts.close()
            server.should_exit = True


def _place(address: str, is_open: bool) -> Place:
    """Where to listen.

    Raises:
        InvalidOption: see `serve`.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise InvalidOption(f"{short(address)} is not an address: give host:port, for example 127.0.0.1:9100")
    if not is_open and not is_here(host):
        raise InvalidOption(
            f"{short(address)} can be reached from other machines, so the service needs access control and a "
            "certificate: give both (--access, --tls-cert, --tls-key), listen at 127.0.0.1 behind a proxy "
            "that has them, or say that it may be insecure (--insecure)"
        )
    return Place(host, int(port))


@contextmanager
def _bound(place: Place) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((place.host, place.port))
        except OSError as error:
            raise InvalidOption(f"can't listen at {place}: {error.strerror or error}") from error
        yield bound

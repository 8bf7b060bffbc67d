"""Servers that demand a certificate of the client, and servers with TLS whose URL says nothing of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from intervalq.errors import InvalidOption, StoreUnavailable
from intervalq.rules import Inspect
from intervalq.schedules import Schedules
from intervalq.store import open_store
from intervalq.tasks.store import open_task_store
from intervalq_stores.postgres import _tls as postgres_tls
from servers import Server, free_port
from stores.test_secure_transport import inspect, nats_with, postgres, refusal
from stores.test_secure_transport import redis_url as secure_redis
from tls_fronts import INTERNAL_ERROR, SECRET, SSL_REQUEST, Certificates, Front, answering

pytestmark = pytest.mark.anyio

DEMANDS, REFUSES = "demands a certificate of the client: give it with", "refuses the client's certificate"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def test_redis(certificates: Certificates, own_redis: Callable[..., Server]) -> None:
    """Its alert is often lost with the connection, which was taken for an outage."""
    with Front(own_redis(password=SECRET).url, certificates.server("good", asks=True)) as way:
        url = secure_redis(way, certificates)
        for kind, message in (("", DEMANDS), ("stranger", REFUSES)):
            cert, key = certificates.made(kind or "good")
            more = f"&ssl_certfile={cert}&ssl_keyfile={key}" if kind else ""
            assert message in (said := await refusal(url + more))
            assert "ssl_certfile=PATH and ssl_keyfile=PATH" in said
        cert, key = certificates.made("good")
        await inspect(f"{url}&ssl_certfile={cert}&ssl_keyfile={key}")


async def test_redis_with_tls_and_a_url_without(certificates: Certificates, redis_url: str) -> None:
    """It was taken for an outage."""
    with Front(redis_url, certificates.server("good")) as way:
        assert "uses TLS there, but the URL doesn't: begin it with rediss://" in await refusal(
            f"redis://127.0.0.1:{way.port}"
        )


async def test_a_redis_behind_a_proxy_that_has_lost_it_is_away(certificates: Certificates) -> None:
    """A connection that ends is not taken for a fault of TLS as long as nothing else speaks for one."""
    for scheme, context in (("redis", None), ("rediss", certificates.server("good"))):

        def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(end, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            query = f"?ssl_ca_certs={certificates.authority}" if context else ""
            store = open_store(f"{scheme}://127.0.0.1:{port}{query}")
            with pytest.raises(StoreUnavailable, match="can't be reached"):
                await store.apply("q", Inspect())
            await store.aclose()


@pytest.mark.parametrize("scheme", ["rediss", "postgresql"])
async def test_a_server_with_trouble_of_its_own_is_away(certificates: Certificates, scheme: str) -> None:
    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if scheme == "postgresql":
            await reader.readexactly(len(SSL_REQUEST))
            writer.write(b"S")
        await reader.readexactly(100)  # of the client's hello
        writer.write(INTERNAL_ERROR)
        writer.close()

    async with await asyncio.start_server(alert, "127.0.0.1", 0) as server:
        query = "?sslmode=require" if scheme == "postgresql" else ""
        store = open_store(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/0{query}")
        with pytest.raises(StoreUnavailable):
            await store.apply("q", Inspect())
        await store.aclose()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_files_that_are_being_replaced_are_no_reason_to_end(
    certificates: Certificates, tmp_path: Path, redis_url: str, postgres_url: str, kind: str
) -> None:
    """A process that has used them tries again, as in an outage."""
    paths = [tmp_path / "own.pem", tmp_path / "own.key"]
    good = [Path(path).read_text() for path in certificates.made("good")]
    for path, text in zip(paths, good, strict=True):
        path.touch(0o600)
        path.write_text(text)
    hello = answering(b"S") if kind == "postgres" else None
    server = postgres_url if kind == "postgres" else redis_url
    names = ("sslcert", "sslkey") if kind == "postgres" else ("ssl_certfile", "ssl_keyfile")
    with Front(server, certificates.server("good", asks=True), hello) as way:
        url = postgres(way, certificates) if kind == "postgres" else secure_redis(way, certificates)
        url = url.replace(f":{SECRET}@", "@").replace("://@", "://")  # these servers have no passwords
        store = open_store(f"{url}&{names[0]}={paths[0]}&{names[1]}={paths[1]}")
        await store.apply("q", Inspect())
        paths[1].write_text("")
        way.cut()
        for _ in range(2):  # the first one may be about the connection that has ended
            with pytest.raises(StoreUnavailable):
                await store.apply("q", Inspect())
        paths[1].write_text(good[1])
        await store.apply("q", Inspect())
        await store.aclose()


async def test_postgres(certificates: Certificates, postgres_url: str) -> None:
    context = certificates.server("good", asks=True)
    cert, key = certificates.made("stranger")
    _, other = certificates.made("good")
    with Front(postgres_url, context, answering(b"S")) as way:
        url = postgres(way, certificates)
        assert f"{DEMANDS} sslcert=PATH and sslkey=PATH" in await refusal(url)
        assert REFUSES in await refusal(f"{url}&sslcert={cert}&sslkey={key}")
        for wrong in ("/none", other):
            said = await refusal(f"{url}&sslcert={cert}&sslkey={wrong}")
            assert "the client's certificate can't be used: correct sslcert=PATH and sslkey=PATH" in said


def test_postgres_that_asks_a_role_for_a_certificate() -> None:
    said = postgres_tls._named("failed: FATAL:  connection requires a valid client certificate")
    assert f"{DEMANDS} sslcert=PATH and sslkey=PATH" in str(said)


async def test_nats(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> None:
    for address in nats_with(certificates, tmp_path_factory, "good", asks=True):
        url = f"tls://{address}?tls_ca={certificates.authority}"
        for kind, message in (("", DEMANDS), ("stranger", REFUSES)):
            cert, key = certificates.made(kind or "good")
            more = f"&tls_cert={cert}&tls_key={key}" if kind else ""
            assert message in (said := await refusal(url + more))
            assert "tls_cert=PATH and tls_key=PATH" in said
        cert, key = certificates.made("good")
        await inspect(f"nats://{address}?tls_ca={certificates.authority}&tls_cert={cert}&tls_key={key}")


async def test_files_that_can_not_be_used(certificates: Certificates) -> None:
    """They were taken for an outage of Redis."""
    cert, _ = certificates.made("good")
    _, other = certificates.made("stranger")
    for url in (
        "rediss://127.0.0.1:1?ssl_ca_certs=/none",
        f"rediss://127.0.0.1:1?ssl_certfile={cert}&ssl_keyfile={other}",
        f"rediss://127.0.0.1:1?ssl_ca_certs={other}",
        "nats://127.0.0.1:1?tls_ca=/none",
        f"nats://127.0.0.1:1?tls_cert={cert}&tls_key={other}",
    ):
        for open_ in (open_store, open_task_store):
            with pytest.raises(InvalidOption, match="can't be used"):
                await open_(url).advice()  # type: ignore[union-attr]


async def test_schedules_say_what_they_wait_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They waited for the first answer of their store without a word."""
    schedules = Schedules(f"redis://127.0.0.1:{free_port()}")
    schedules.every("1h", name="x")(lambda: None)
    async with anyio.create_task_group() as group:
        group.start_soon(schedules.run)
        with caplog.at_level(logging.WARNING, "intervalq"), anyio.fail_after(60):
            while not caplog.records:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert "schedules wait for the store" in caplog.text

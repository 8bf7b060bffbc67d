"""TLS that was requested can't be removed: errors name the fault, and no secret is sent in clear text."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import servers
from intervalq import IntervalQueue
from intervalq.errors import InsecureTransport, InvalidOption, StoreUnavailable
from intervalq.rules import Inspect
from intervalq.store import open_store
from intervalq.tasks.store import open_task_store
from intervalq_stores import _transport
from intervalq_stores._transport import is_near
from intervalq_stores.nats import _url as nats_url
from intervalq_stores.postgres import _tls as postgres_tls
from intervalq_stores.postgres.queues import PostgresStore
from intervalq_stores.redis import _advice as redis_advice
from servers import Server
from tls_fronts import SECRET, SSL_REQUEST, Certificates, Front, answering, stripping

pytestmark = pytest.mark.anyio

WRONG = [
    ("stranger", "unknown authority: give the certificate file of its authority with"),
    ("other host", "another host"),
    ("expired", "has expired: renew it"),
    ("early", "isn't valid yet: set the clock"),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def inspect(url: str) -> None:
    store = open_store(url)
    try:
        await store.apply("q", Inspect())
    finally:
        await store.aclose()


async def refusal(url: str, front: Front | None = None) -> str:
    """The errors about TLS, of queues, which don't take it for an outage, and of tasks."""
    async with IntervalQueue("q", interval=1, store=url) as queue:
        with pytest.raises(InsecureTransport) as refused:
            await queue.run(never)
    tasks = open_task_store(url)
    with pytest.raises(InsecureTransport):
        await tasks.advice()  # type: ignore[attr-defined]
    await tasks.aclose()
    if front is not None:
        assert SECRET.encode() not in bytes(front.seen)
    assert SECRET not in str(refused.value)
    assert not isinstance(refused.value, StoreUnavailable), "no outage: nobody tries again"
    return str(refused.value)


async def never() -> None:
    raise AssertionError("it began")


# --- Redis ------------------------------------------------------------------------------------------


@pytest.fixture
def locked_redis(own_redis: Callable[..., Server]) -> str:
    return own_redis(password=SECRET).url


def redis_url(front: Front, certificates: Certificates, scheme: str = "rediss") -> str:
    return f"{scheme}://:{SECRET}@127.0.0.1:{front.port}/0?ssl_ca_certs={certificates.authority}"


async def test_redis_with_tls(certificates: Certificates, locked_redis: str) -> None:
    with Front(locked_redis, certificates.server("good")) as way:
        await inspect(redis_url(way, certificates))
    assert SECRET.encode() in bytes(way.inside)


@pytest.mark.parametrize(("kind", "message"), WRONG)
async def test_redis_with_a_wrong_certificate(
    certificates: Certificates, redis_url_of_session: str, kind: str, message: str
) -> None:
    with Front(redis_url_of_session, certificates.server(kind)) as way:
        assert message in await refusal(redis_url(way, certificates), way)
        assert way.connections == 2, "none was tried again"
    assert not way.inside


async def test_redis_that_speaks_clear_text(certificates: Certificates, redis_url_of_session: str) -> None:
    with Front(redis_url_of_session, None) as way:
        assert "uses clear text" in await refusal(redis_url(way, certificates), way)


@pytest.fixture
def redis_url_of_session(request: pytest.FixtureRequest) -> str:
    """The session's own server."""
    url: str = request.getfixturevalue("redis_url")
    return url


# --- Postgres ---------------------------------------------------------------------------------------


def postgres(front: Front, certificates: Certificates, mode: str = "verify-full") -> str:
    root = f"&sslrootcert={certificates.authority}" if mode.startswith("verify") else ""
    return f"postgresql://postgres:{SECRET}@127.0.0.1:{front.port}/postgres?sslmode={mode}{root}"


async def test_postgres_with_tls(certificates: Certificates, empty_postgres_url: str) -> None:
    with Front(empty_postgres_url, certificates.server("good"), answering(b"S")) as way:
        database = empty_postgres_url.rpartition("/")[2]
        await inspect(postgres(way, certificates).replace("/postgres?", f"/{database}?"))
    assert bytes(way.seen) == SSL_REQUEST
    assert b"intervalq" in bytes(way.inside)


@pytest.mark.parametrize(("kind", "message"), WRONG)
async def test_postgres_with_a_wrong_certificate(
    certificates: Certificates, postgres_url: str, kind: str, message: str
) -> None:
    with Front(postgres_url, certificates.server(kind), answering(b"S")) as way:
        assert message in await refusal(postgres(way, certificates), way)
    assert not way.inside
    assert bytes(way.seen) == SSL_REQUEST * way.connections


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca", "require"])
async def test_postgres_whose_offer_is_stripped(
    certificates: Certificates, postgres_url: str, mode: str
) -> None:
    with Front(postgres_url, None, answering(b"N")) as way:
        assert "uses clear text" in await refusal(postgres(way, certificates, mode), way)
    assert bytes(way.seen) == SSL_REQUEST * way.connections


async def test_postgres_without_the_file_of_an_authority(
    certificates: Certificates, postgres_url: str
) -> None:
    with Front(postgres_url, certificates.server("good"), answering(b"S")) as way:
        url = postgres(way, certificates).replace("ca.pem", "none.pem")
        assert "sslrootcert=PATH" in await refusal(url, way)


# --- NATS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["required", "optional"])
def secure_nats(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    yield from nats_with(certificates, tmp_path_factory, "good", optional=request.param == "optional")


def nats_with(
    certificates: Certificates,
    folders: pytest.TempPathFactory,
    kind: str,
    *,
    optional: bool = False,
    asks: bool = False,
) -> Iterator[str]:
    """A real NATS with TLS and a password; `asks`: for a certificate of clients, too."""
    path: Path = folders.mktemp("nats") / "server.conf"
    chain, key = certificates.made(kind)
    path.write_text(
        f"authorization {{ user: me, password: '{SECRET}' }}\n"
        f"tls {{ cert_file: '{chain}', key_file: '{key}', ca_file: '{certificates.authority}', "
        f"verify: {str(asks).lower()} }}\nallow_non_tls: {str(optional).lower()}\n"
    )
    server = servers.nats_server("-c", str(path))
    server._ready = _listens
    with servers.running(server):
        yield f"me:{SECRET}@127.0.0.1:{server.port}"


def _listens(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as way:
        assert b'"jetstream":true' in way.makefile("rb").readline()


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_nats_with_tls(certificates: Certificates, secure_nats: str, scheme: str) -> None:
    await inspect(f"{scheme}://{secure_nats}?tls_ca={certificates.authority}")


async def test_nats_by_the_authorities_of_the_system(
    certificates: Certificates, secure_nats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "unknown authority" in await refusal(f"tls://{secure_nats}")
    monkeypatch.setenv("SSL_CERT_FILE", certificates.authority)
    await inspect(f"tls://{secure_nats}")


async def test_nats_whose_offer_is_stripped(certificates: Certificates, secure_nats: str) -> None:
    login, _, address = secure_nats.rpartition("@")
    fields = ("tls_required", "tls_available", "tls_verify")
    with Front(f"nats://{address}", None, stripping(*fields)) as way:
        url = f"nats://{login}@127.0.0.1:{way.port}?tls_ca={certificates.authority}"
        assert "uses clear text" in await refusal(url, way)
        assert "uses clear text" in await refusal(url.replace("nats://", "tls://"), way)
    assert not way.seen, "nothing is said before TLS"


async def test_nats_that_speaks_clear_text(certificates: Certificates, nats_url: str) -> None:
    with Front(nats_url, None) as way:
        url = f"nats://me:{SECRET}@127.0.0.1:{way.port}?tls_ca={certificates.authority}"
        assert "uses clear text" in await refusal(url, way)
    assert not way.seen


@pytest.mark.parametrize(("kind", "message"), WRONG)
async def test_nats_with_a_wrong_certificate(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory, kind: str, message: str
) -> None:
    for address in nats_with(certificates, tmp_path_factory, kind):
        assert message in await refusal(f"nats://{address}?tls_ca={certificates.authority}")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://host?ssl_ca_certs=x", "begin it with rediss://"),
        ("redis+cluster://host?ssl_cert_reqs=required", "begin it with rediss://"),
        ("unix:///socket?ssl_ca_certs=x", "begin it with rediss://"),
        ("redis://host?tls_ca=x", "rediss:// for TLS"),
        ("redis://host?tls=1", "rediss:// for TLS"),
        ("postgresql://host/db?sslmode=verify_full", "sslmode is one of disable, .*, verify-full, not"),
        ("postgresql://host/db?sslmode=", "sslmode is one of"),
        ("nats://host?tls=1", "tls:// with TLS"),
        ("nats://host?sslmode=verify-full", "tls:// with TLS"),
        ("nats://host?tls_cert=x", "tls_cert=PATH and tls_key=PATH"),
        ("rediss://host?ssl_cert_reqs=full", "ssl_... options"),
        ("rediss://host?ssl_ca=x", "ssl_... options"),
    ],
)
def test_a_wish_for_tls_that_is_spelled_otherwise_is_refused(url: str, message: str) -> None:
    """It was taken for an outage, or for clear text."""
    for open_ in (open_store, open_task_store):
        with pytest.raises(InvalidOption, match=message):
            open_(url)


# --- passwords in clear text --------------------------------------------------------------------------


FAR = [
    f"redis://:{SECRET}@cache.example:6379/0",
    f"redis+cluster://user:{SECRET}@10.0.0.7",
    f"redis://cache.example?password={SECRET}",
    f"nats://me:{SECRET}@one.example,127.0.0.1",
    f"nats://{SECRET}@one.example",
]
NEAR = [
    f"redis://:{SECRET}@localhost:6379/0",
    f"redis://:{SECRET}@127.8.0.1",
    f"redis://:{SECRET}@[::1]:6379",
    f"unix://:{SECRET}@/run/redis.sock",
    f"rediss://:{SECRET}@cache.example",
    "redis://cache.example",
    f"nats://me:{SECRET}@127.0.0.1",
    f"tls://me:{SECRET}@one.example",
    "nats://one.example",
]


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transport, "_warned", set())


@pytest.mark.parametrize("url", [*FAR, *NEAR])
def test_a_password_in_clear_text_warns_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        open_store(url)
        open_task_store(url)
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == (url in FAR)
    assert not any(SECRET in text for text in reported)
    assert all("rediss://" in text or "tls://" in text for text in reported)


async def test_a_password_to_postgres_by_default(
    own_postgres: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "intervalq")
    server = own_postgres()
    rights = server.folder.path / "data" / "pg_hba.conf"
    rights.write_text(f"host all locked all scram-sha-256\n{rights.read_text()}")
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"create role locked login superuser password '{SECRET}'".encode())
        admin.execute("select pg_reload_conf()")
    way = f"postgresql://locked:{SECRET}@{{}}:{server.port}/postgres"
    far = way.format("far.example") + "?hostaddr=127.0.0.1"
    for url, warns in ((way.format("127.0.0.1"), 0), (far, 1), (f"{far}&sslmode=disable", 0)):
        caplog.clear()
        await inspect(url)
        reported = [record.getMessage() for record in caplog.records]
        assert len(reported) == warns, "each store once"
        assert all("sslmode=verify-full" in text and SECRET not in text for text in reported)


def test_what_is_near() -> None:
    assert all(map(is_near, ["", "/run/x", "@abstract", "localhost", "LOCALHOST.", "127.1.2.3", "::1"]))
    assert not any(
        map(is_near, ["10.0.0.1", "localhost.example", "example", "0.0.0.0", "::", "fe80::1%eth0"])
    )


@pytest.mark.parametrize(
    ("host", "address", "warns"),
    [
        ("127.0.0.1", "10.0.0.7", True),
        ("", "10.0.0.7", True),
        ("localhost,localhost", "127.0.0.1,10.0.0.7", True),
        ("localhost,far.example", "", True),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_the_address_of_a_postgres_counts_not_only_its_name(host: str, address: str, warns: bool) -> None:
    assert postgres_tls.may_show_password({"host": host, "hostaddr": address}) == warns


# --- what is said of it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("redis://cache.example", "warning"),
        ("redis://127.0.0.1", "ok"),
        ("unix:///run/redis.sock", "ok"),
        ("rediss://cache.example", "ok"),
        ("rediss://cache.example?ssl_cert_reqs=none", "warning"),
        ("rediss+cluster://cache.example?ssl_check_hostname=false", "warning"),
    ],
)
def test_what_is_said_of_the_way_to_a_redis(url: str, level: str) -> None:
    assert redis_advice.way(url)[0] == level


@pytest.mark.parametrize(
    ("url", "encrypted", "level"),
    [
        ("nats://one.example", False, "warning"),
        ("nats://one.example", True, "warning"),
        ("nats://127.0.0.1,one.example", False, "warning"),
        ("nats://127.0.0.1", False, "ok"),
        ("tls://one.example", True, "ok"),
    ],
)
def test_what_is_said_of_the_way_to_a_nats(url: str, encrypted: bool, level: str) -> None:
    assert nats_url.way(url, encrypted=encrypted)[0] == level


async def test_what_is_said_of_the_way_to_a_postgres(certificates: Certificates, postgres_url: str) -> None:
    database = psycopg.conninfo.conninfo_to_dict(postgres_url)
    login = f"{database['user']}@far.example"
    with Front(postgres_url, certificates.server("good"), answering(b"S")) as front:
        for more, level in (
            ("sslmode=require", "identity is not checked"),
            ("sslmode=prefer", "everybody on the network"),
        ):
            way = f"postgresql://{login}:{front.port}/{database['dbname']}?hostaddr=127.0.0.1&{more}"
            [reported] = [
                what for _, what in await advice(way) if what.startswith(("the connection", "everybody"))
            ]
            assert level in reported
        way = postgres(front, certificates)
        checked = "the connection is encrypted, and the server's certificate is checked"
        assert ("ok", checked) in await advice(way)


async def advice(url: str) -> list[tuple[str, str]]:
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    try:
        return await store.advice()
    finally:
        await store.aclose()

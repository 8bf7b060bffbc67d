"""TLS to a service can't be removed: errors name the fault, and no token is sent in clear text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from intervalq.errors import InsecureTransport, InvalidOption, StoreUnavailable
from intervalq.rules import Inspect
from intervalq.service import Tls
from intervalq.store import open_store
from intervalq_stores.remote._connection import Connection
from intervalq_stores.remote._url import Where
from service.serving import serving
from tls_fronts import INTERNAL_ERROR, SECRET, Certificates, Front

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def refusal(front: Front, query: str, scheme: str = "intervalq") -> str:
    store = open_store(f"{scheme}://{SECRET}@127.0.0.1:{front.port}{query}")
    with pytest.raises(InsecureTransport) as refused:
        await store.apply("q", Inspect())
    await store.aclose()
    assert SECRET.encode() not in bytes(front.seen) + bytes(front.inside)
    assert SECRET not in str(refused.value)
    assert not isinstance(refused.value, StoreUnavailable), "no outage: nobody tries again"
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("stranger", "from an unknown authority: give the certificate file"),
        ("other host", "is for another host"),
        ("expired", "has expired"),
        ("early", "isn't valid yet"),
        ("good", None),
    ],
)
async def test_certificates(
    certificates: Certificates, tmp_path: Path, kind: str, message: str | None
) -> None:
    context = certificates.server(kind)
    context.set_alpn_protocols(["h2"])
    async with serving(f"memory://{tmp_path}") as address:
        with Front(f"tcp://{address}", context) as front:
            if message is not None:
                assert message in await refusal(front, f"?tls_ca={certificates.authority}")
                return
            store = open_store(f"intervalqs://127.0.0.1:{front.port}?tls_ca={certificates.authority}")
            assert (await store.apply("q", Inspect())).state is None
            await store.aclose()
            assert front.inside
            front.inside.clear()
            assert "from an unknown authority" in await refusal(front, "", "intervalqs")


async def test_a_service_that_speaks_clear_text(certificates: Certificates, tmp_path: Path) -> None:
    """Or something on the network that has removed TLS."""
    async with serving(f"memory://{tmp_path}") as address:
        with Front(f"tcp://{address}", None) as front:
            assert "uses clear text" in await refusal(front, f"?tls_ca={certificates.authority}")


async def test_a_service_with_tls_and_a_url_without(certificates: Certificates, tmp_path: Path) -> None:
    """It was taken for an outage."""
    async with serving(f"memory://{tmp_path}") as address:
        with Front(f"tcp://{address}", certificates.server("good")) as front:
            assert "uses TLS there, but the URL doesn't: begin it with intervalqs://" in await refusal(
                front, ""
            )


async def test_a_service_that_demands_a_certificate(certificates: Certificates, tmp_path: Path) -> None:
    """It ends the connection without saying so, as a proxy without a service does: an error with a hint."""
    cert, key = certificates.made("good")
    own = Tls(cert, key, client_ca=certificates.authority)
    async with serving(f"memory://{tmp_path}", tls=own) as address:
        url = f"intervalqs://{SECRET}@{address}?tls_ca={certificates.authority}"
        store = open_store(url)
        with pytest.raises(
            StoreUnavailable, match=r"demands a client's certificate, give one .* tls_cert=PATH"
        ):
            await store.apply("q", Inspect())
        await store.aclose()
        store = open_store(f"{url}&tls_cert={cert}&tls_key={key}")
        assert (await store.apply("q", Inspect())).state is None
        await store.aclose()


@pytest.mark.parametrize("answer", [b"", INTERNAL_ERROR])
async def test_a_service_that_ends_while_a_connection_is_made_is_away(
    certificates: Certificates, answer: bytes
) -> None:
    """As one does that is started again behind a proxy. It was taken for a fault of TLS."""

    def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        store = open_store(f"intervalqs://127.0.0.1:{port}?tls_ca={certificates.authority}")
        with pytest.raises(StoreUnavailable, match="no service answers"):
            await store.apply("q", Inspect())
        await store.aclose()


@pytest.mark.parametrize(
    "said",
    [
        "DNS resolution failed for tls.example:37706: C-ares status is not ARES_SUCCESS",
        "failed to connect to all addresses; last error: Handshake read failed (Endpoint closing)",
    ],
)
async def test_a_service_without_a_name_or_an_answer_is_away(said: str) -> None:
    connection = Connection(
        Where(("tls.example:37706",), None, has_tls=True, files={}), "intervalqs://tls.example"
    )
    assert isinstance(await connection._unreachable("tls.example:37706", said), StoreUnavailable)


async def test_files_that_can_not_be_used(certificates: Certificates) -> None:
    cert, key = certificates.made("good")
    _, other = certificates.made("stranger")
    for query in ("tls_ca=/none", f"tls_ca={key}", f"tls_cert={cert}&tls_key={other}"):
        store = open_store(f"intervalq://127.0.0.1:1?{query}")
        with pytest.raises(InvalidOption, match="can't be used"):
            await store.apply("q", Inspect())
        await store.aclose()

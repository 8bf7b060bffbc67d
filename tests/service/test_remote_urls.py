"""URLs of services: certificates, tokens that nobody sees, versions that don't fit."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trustme

from intervalq._wire.verbs import VERSION
from intervalq.errors import (
    BackendUnsupported,
    InsecureTransport,
    InvalidOption,
    StoreError,
    VersionMismatch,
)
from intervalq.rules import Advance, Hold, Inspect, Settings
from intervalq.service import Tls
from intervalq.store import open_store
from intervalq.sync import IntervalQueue
from service.processes import Served
from service.serving import serving


async def test_tls_a_token_and_who_is_not_trusted(tmp_path: Path) -> None:
    known, unknown = trustme.CA(), trustme.CA()
    names = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "other", "cert", "key")}
    known.cert_pem.write_to_path(names["ca"])
    unknown.cert_pem.write_to_path(names["other"])
    server = known.issue_cert("localhost")
    server.private_key_pem.write_to_path(names["key"])
    server.cert_chain_pems[0].write_to_path(names["cert"])
    tls = Tls(names["cert"], names["key"])
    async with serving(f"memory://{tmp_path}", grpc="localhost:0", tls=tls) as address:
        store = open_store(f"intervalqs://{address}?tls_ca={names['ca']}")
        await store.apply("q", Advance(settings=Settings(1), nonce="n"))
        assert store.url == f"intervalqs://{address}"
        await store.aclose()
        for url in (f"intervalq://{address}?tls_ca={names['other']}", f"intervalqs://{address}"):
            store = open_store(url)
            with pytest.raises(InsecureTransport, match="no token was sent"):
                await store.apply("q", Inspect())
            await store.aclose()
        store = open_store(f"intervalq://{address}")
        with pytest.raises(InsecureTransport, match="the URL doesn't"):
            await store.apply("q", Inspect())
        await store.aclose()
    mine = known.issue_cert("me@example.org")
    for name, blob in (("me", mine.cert_chain_pems[0]), ("mykey", mine.private_key_pem)):
        names[name] = str(tmp_path / f"{name}.pem")
        blob.write_to_path(names[name])
    tls = Tls(names["cert"], names["key"], names["ca"])
    async with serving(f"memory://{tmp_path}", grpc="localhost:0", tls=tls) as address:
        plain = f"intervalqs://{address}?tls_ca={names['ca']}"
        store = open_store(f"{plain}&tls_cert={names['me']}&tls_key={names['mykey']}")
        await store.apply("q", Inspect())
        await store.aclose()
        store = open_store(plain)
        with pytest.raises(StoreError):
            await store.apply("q", Inspect())
        await store.aclose()
    with pytest.raises(InvalidOption, match="can't be used"):
        await open_store("intervalq://localhost?tls_ca=none.pem").apply("q", Inspect())


@pytest.mark.parametrize(
    "url",
    [
        *(
            "intervalq://",
            "intervalq://a:b@host",
            "intervalq://@host",
            "intervalq://host/db",
            "intervalq://h:x",
        ),
        *("intervalq://host?token=x", "intervalq://a,,b", "intervalq://host#x", "intervalq://host?tls_key=x"),
        "intervalq://host?tls_ca=x&tls_ca=y",
    ],
)
def test_urls_that_say_something_else_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match=r"isn't the URL of a service"):
        open_store(url)


def test_no_token_is_shown_and_trio_is_refused_by_name() -> None:
    store = open_store("intervalq://a%2Fsecret@10.0.0.1,10.0.0.2:7")
    assert "secret" not in store.url + repr(store)
    with pytest.raises(BackendUnsupported, match="needs asyncio"):
        trio.run(store.apply, "q", Hold())


async def test_a_service_of_another_version_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(f"memory://{tmp_path}") as address:
        monkeypatch.setattr("intervalq_stores.remote._connection.VERSION", VERSION + 1)
        store = open_store(f"intervalq://{address}")
        with pytest.raises(VersionMismatch, match="upgrade the service"):
            await store.apply("q", Inspect())
        await store.aclose()


FORKS = """
import os, sys
from intervalq.errors import StoreError
from intervalq.sync import IntervalQueue

queue = IntervalQueue("q", interval="1us", store=sys.argv[1])
used = sys.argv[2] == "used"
if used:
    queue.inspect()
if child := os.fork():
    queue.inspect()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    queue.inspect()
except StoreError as error:
    os._exit(3 if "forkserver" in str(error) else 4)
os._exit(0)
"""


def test_a_fork_after_the_first_use_is_refused_by_name(tmp_path: Path) -> None:
    """In such a child, gRPC would crash."""
    with Served(str(tmp_path / "q.db"), "--http", "none") as served:
        with IntervalQueue("q", interval="1us", store=served.url) as queue, queue.slot():
            pass
        for when, code in (("used", 3), ("unused", 0)):
            command = [sys.executable, "-c", FORKS, served.url, when]
            assert subprocess.run(command, check=False, timeout=60).returncode == code, when


async def test_no_proxy_gets_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        async with serving(f"memory://{tmp_path}") as address:
            store = open_store(f"intervalq://secret@{address}")
            assert (await store.apply("q", Inspect())).state is None
            await store.aclose()

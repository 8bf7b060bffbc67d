"""Certificates, valid and invalid ones, and proxies that offer or hide TLS and record the traffic."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import trustme

SECRET: Final = "s3cret-of-this-test"
"""The password of every URL, which must not be seen on any connection."""

SSL_REQUEST: Final = b"\0\0\0\x08\x04\xd2\x16/"

INTERNAL_ERROR: Final = b"\x15\3\3\0\2\2\x50"
"""The alert of a server that has trouble of its own."""


class Certificates:
    """A certificate authority in files, and certificates of servers, valid and invalid ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority, self._stranger = trustme.CA(), trustme.CA()
        self.authority = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.authority)

    def made(self, kind: str) -> tuple[str, str]:
        """Make the files of a certificate and its key.

        Kinds: `good`, `stranger`, `other host`, `expired`, or `early` for one that isn't valid yet.
        """
        authority = self._stranger if kind == "stranger" else self._authority
        hosts = ["elsewhere.example"] if kind == "other host" else ["127.0.0.1", "localhost"]
        ago = datetime.now(UTC) + timedelta(days=2 if kind == "early" else -2)
        end = ago + timedelta(days=1) if kind == "expired" else ago + timedelta(days=365)
        made = authority.issue_cert(*hosts, not_before=ago, not_after=end)
        name = kind.replace(" ", "-")
        chain, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        made.cert_chain_pems[0].write_to_path(chain)
        made.private_key_pem.write_to_path(key)
        key.chmod(0o600)  # libpq insists
        return str(chain), str(key)

    def server(self, kind: str, *, asks: bool = False) -> ssl.SSLContext:
        """The TLS context of a server with such a certificate; `asks`: which demands one of clients, too."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.made(kind))
        if asks:
            context.load_verify_locations(self.authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Front:
    """A proxy in front of a server without TLS. `seen` is what it received before TLS began.

    Args:
        url: of the server.
        context: the TLS to offer after the hello; None: everything is passed on unchanged.
        hello: makes the first exchange, given the connections of the client and to the server.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None, hello: Hello | None = None) -> None:
        there = urlsplit(url)
        self._there = (there.hostname, there.port)
        self._context, self._hello = context, hello
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.seen = bytearray()
        self.inside = bytearray()
        """What it received within TLS."""
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self) -> None:
        """End the connections of all clients and to the server."""
        for way in self._open:
            with suppress(OSError):
                way.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._open.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._there) as server:
            self._open.append(server)
            if self._hello is not None:
                self.seen += self._hello(client, server)
            if self._context is None:
                _pass(client, server, self.seen)
                return
            with self._context.wrap_socket(client, server_side=True) as secure:
                _pass(secure, server, self.inside)


Hello = Callable[[socket.socket, socket.socket], bytes]


def _pass(client: socket.socket, server: socket.socket, log: bytearray) -> None:
    """Pass on everything until one of the two sides ends."""
    while True:
        ready = [client] if isinstance(client, ssl.SSLSocket) and client.pending() else []
        for source in ready or select.select([client, server], [], [])[0]:
            if not (data := source.recv(65_536)):
                return
            if source is client:
                log += data
            (server if source is client else client).sendall(data)


def answering(answer: bytes) -> Hello:
    """Answer a client that asks for TLS, as a PostgreSQL does."""

    def hello(client: socket.socket, _: socket.socket) -> bytes:
        asked = client.recv(len(SSL_REQUEST))
        client.sendall(answer)
        return asked

    return hello


def stripping(*fields: str) -> Hello:
    """Pass on the hello of a NATS, without these fields."""

    def hello(client: socket.socket, server: socket.socket) -> bytes:
        with server.makefile("rb", 0) as lines:
            info = json.loads(lines.readline().removeprefix(b"INFO "))
        reported = {name: value for name, value in info.items() if name not in fields}
        client.sendall(b"INFO " + json.dumps(reported).encode() + b"\r\n")
        return b""

    return hello

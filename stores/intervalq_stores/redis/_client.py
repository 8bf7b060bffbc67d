"""The client of the stores in Redis, without its driver: a worker thread imports it at the first command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from ssl import VerifyFlags
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from anyio import to_thread

from intervalq.errors import BackendUnsupported, CorruptState, InvalidOption, MissingExtra
from intervalq.store import shown_url
from intervalq_stores._transport import is_near, warn_of_password
from intervalq_stores.redis._advice import TLS, host_of, is_encrypted, rights, way
from intervalq_stores.redis._ports import Address, Trip
from intervalq_stores.redis._scripts import Script

if TYPE_CHECKING:
    from intervalq_stores.redis._connection import Server

MAX_LISTED: Final = 10_000_000
"""The maximum number of keys, and pages, that SCAN may list: a longer list would fill the memory."""

_OPTIONS: Final = re.compile(
    "host|port|path|username|password|db|client_name|ssl_(?:ca_certs|ca_data|ca_path|certfile|keyfile|password|"
    "cert_reqs|check_hostname|ciphers|min_version|include_verify_flags|exclude_verify_flags)"
)
"""The allowed options of a URL; other options of the driver would interfere with these connections."""

_CHECKS: Final = frozenset({"none", "optional", "required"})
"""The values of `ssl_cert_reqs`."""


class Client:
    """Makes a `Server` for the running event loop at the first command, and passes commands on to it.

    Importing the driver may take a second on a busy machine, and must not block the event loop.
    """

    def __init__(self, url: str, what: str) -> None:
        if find_spec("redis") is None:
            raise MissingExtra(what, "redis")
        try:
            fits = _fits(url)
        except ValueError:  # its text may contain a part of the password, if that has a / or a #
            fits = False
        if not fits:
            raise InvalidOption(
                "this is not the URL of a Redis: write redis://[user:password@]host[:port][/db] (rediss:// "
                "for TLS), unix:///path, or redis+cluster://host[:port]; the query may have "
                "db, client_name, and ssl_... options; a password with : / ? # @ or % must be percent-encoded"
            )
        if not is_encrypted(url) and any(name.startswith("ssl_") for name in parse_qs(urlsplit(url).query)):
            raise InvalidOption(
                "options that begin with ssl_ are for TLS, but this URL is for clear text: begin it with "
                "rediss:// or rediss+cluster://"
            )
        self.url = shown_url(url)
        if _has_password(url) and not is_encrypted(url) and not is_near(host_of(url)):
            warn_of_password(self.url, TLS)
        self._url = url
        self._what = what
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    async def run(self, key: str, script: Script, *arguments: str | bytes) -> tuple[Any, Trip]:
        """See `Server.run`."""
        return await (await self._opened()).run(key, script, *arguments)

    async def call(self, *command: str, node: Address = None) -> Any:  # noqa: ANN401 - see there
        """See `Server.call`."""
        return await (await self._opened()).call(*command, node=node)

    async def nodes(self) -> list[Address]:
        """See `Server.nodes`."""
        return await (await self._opened()).nodes()

    async def safety(self) -> list[tuple[str, str]]:
        """Ratings of the connection to the server, and of the rights of this user."""
        return [way(self._url), await rights(self, None)]

    async def keys(self, pattern: str) -> AsyncIterator[bytes]:
        """All keys of all servers that match, a thousand at a time; some may come twice.

        Raises:
            CorruptState: there is no end of them.
        """
        for node in await self.nodes():
            cursor, listed = b"0", 0
            while True:
                part = await self.call("SCAN", cursor.decode(), "MATCH", pattern, "COUNT", "1000", node=node)
                with self.expected("SCAN"):
                    cursor, keys = part
                    if not all(isinstance(each, bytes) for each in (cursor, *keys)):
                        raise TypeError
                listed += 1 + len(keys)  # pages without a key, too, have to end
                if listed > MAX_LISTED:
                    raise CorruptState(self.url, f"SCAN lists more than {MAX_LISTED:,} keys, without an end")
                for key in keys:
                    yield key
                if cursor == b"0":
                    break

    async def info(self, *section: str, node: Address = None) -> str:
        """What a server says of itself.

        Raises:
            Unauthorized: this user may not ask.
        """
        text = await self.call("INFO", *section, node=node)
        with self.expected("INFO"):
            return str(text.decode(errors="replace"))

    @contextmanager
    def expected(self, what: str) -> Iterator[None]:
        """A context that reads an answer, which anything may have sent that listens there.

        Raises:
            CorruptState: it has another form.
        """
        try:
            yield
        except (ValueError, TypeError, AttributeError, LookupError):
            raise CorruptState(
                self.url, f"the answer to {what} can't be read: is this a Redis or Valkey?"
            ) from None

    @asynccontextmanager
    async def messages(self, channel: str) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
        """See `Server.messages`."""
        async with (await self._opened()).messages(channel) as next_messages:
            yield next_messages

    @asynccontextmanager
    async def subscribed(self, channel: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Listen to a channel. The context gives a function that waits for the next message."""
        async with self.messages(channel) as next_messages:

            async def heard() -> None:
                await next_messages()

            yield heard

    async def close(self) -> None:
        """See `Server.close`."""
        if self._server is not None:
            await self._server.close()

    async def _opened(self) -> Server:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise BackendUnsupported(
                self.url,
                "the driver of Redis needs asyncio: run this with asyncio; under trio, use sqlite:// or "
                "memory://, or for queues and ledgers file://",
            ) from None
        if self._loop is not loop:  # the connections ended with the other event loop
            self._loop, self._server, self._turn = loop, None, asyncio.Lock()
        if self._server is not None:
            return self._server
        async with self._turn:
            server = self._server  # another caller may have created it in the meantime
            if server is None:
                kind = await to_thread.run_sync(self._import, abandon_on_cancel=True)
                server = self._server = kind(self._url)
            return server

    def _import(self) -> type[Server]:
        try:
            from intervalq_stores.redis._connection import Server  # noqa: PLC0415 - needs the extra
        except ImportError as missing:
            raise MissingExtra(self._what, "redis") from missing
        return Server


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password or parse_qs(parts.query).get("password"))


def _fits(url: str) -> bool:
    """Whether the parts of a URL are valid; some invalid ones raise `ValueError`."""
    scheme, _, rest = url.partition("://")
    kind = scheme.lower().removesuffix("+cluster")
    parts = urlsplit(f"{kind}://{rest}")
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    db = query.get("db") or parts.path.strip("/")
    for number in (parts.port, query.get("port"), query.get("db"), query.get("ssl_min_version")):
        int(number or 0)
    for flags in (query.get("ssl_include_verify_flags"), query.get("ssl_exclude_verify_flags")):
        for flag in (flags or "").strip("[]").split(",") if flags else ():
            if flag.strip() not in VerifyFlags.__members__:
                return False
    if not all(map(_OPTIONS.fullmatch, query)) or query.get("ssl_cert_reqs", "none") not in _CHECKS:
        return False
    if kind == "unix":
        return bool(parts.path or "path" in query)
    clustered = scheme.lower().endswith("+cluster")
    return (
        kind in {"redis", "rediss"}
        and re.fullmatch(r"/?\d*", parts.path) is not None
        and not (clustered and int(db or 0))
    )

"""The driver's client with two shortcuts, and with TLS that nobody on the network can disable.

The shortcuts exist because a request takes more time in the driver than in the server.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from nats import errors as driver
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from intervalq_stores._transport import Remedies, clear_text

_PREFIX: Final = len("NATS/1.0")

_MAX_BUFFERED: Final = 68 << 20
"""The largest message in bytes, with what is read ahead: no server passes on more than 64 MiB."""

_MAX_LINE: Final = 1 << 20
"""The longest line in bytes. A server tells of itself and of its cluster in one."""

REMEDIES: Final = Remedies(
    authority="tls_ca=PATH",
    own="tls_cert=PATH and tls_key=PATH",
    plain="omit the tls_ options and write nats:// for clear text",
    tls="begin it with tls://",
)


class QuickMsg(Msg):
    """A message whose headers are parsed only when they are used."""

    def __init__(self, client: Client, subject: str, reply: str, data: bytes, raw: bytes) -> None:
        self._client, self.subject, self.reply, self.data, self.raw = client, subject, reply, data, raw
        self._metadata, self._ackd, self._sid = None, False, None
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str] | None:  # type: ignore[override]  # it is read only
        """Including `Status` and `Description`, which the first line may have; None: there are no headers."""
        if self._headers is None and self.raw:
            self._headers = parsed(self.raw)
        return self._headers


def status(message: Msg) -> str | None:
    """The status code of a control message; None: the message is an answer."""
    if isinstance(message, QuickMsg) and message.raw[_PREFIX : _PREFIX + 2] in {b"", b"\r\n"}:
        return None
    return (message.headers or {}).get("Status")


def header(message: Msg, name: str) -> str | None:
    """One header of a message. If the message doesn't have it, the others aren't parsed."""
    if isinstance(message, QuickMsg) and name.encode() not in message.raw:
        return None
    return (message.headers or {}).get(name)


class _BoundedParser(Parser):
    """Ends the connection at what no server sends, instead of keeping it, or leaving it without a reader."""

    async def parse(self, data: bytes = b"") -> None:
        """As the driver calls it.

        Raises:
            nats.errors.ProtocolError: a line or a message is too long, or has another form.
        """
        try:
            await super().parse(data)
        except Exception as error:
            raise driver.ProtocolError from error
        most = _MAX_LINE if self.state == AWAITING_CONTROL_LINE else _MAX_BUFFERED
        if self.needed > _MAX_BUFFERED or len(self.buf) > most:
            raise driver.ProtocolError


class QuickClient(Client):
    """Passes messages of a subscription on as they are read, without a queue and a task in between.

    If a version of the driver doesn't call `_process_msg`, messages come by the subscription's own callback.
    """

    def __init__(self, *, secure: bool = False) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)
        self._secure = secure
        """Whether to send nothing before TLS is established, whatever the server or an attacker says."""
        self.direct: dict[int, Callable[[Msg], None]] = {}
        """The functions to call with messages of subscriptions; they must not fail."""
        self.heard = 0
        """How many messages have arrived for these."""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is established."""
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._secure and initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise clear_text(REMEDIES)
            info["tls_required"] = True  # for the driver; servers may leave the choice to clients
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        """The command with the password: the last check, whatever the driver makes of the server's info."""
        if self._secure and not self.is_encrypted:
            raise clear_text(REMEDIES)
        return super()._connect_command()

    async def give_up(self) -> None:
        """End a failed connection: after failed TLS, the driver's own `close` would wait for ever."""
        transport, self._transport = self._transport, None
        for name in ("_io_writer", "_bare_io_writer"):
            writer = getattr(transport, name, None)
            if writer is not None:
                writer.transport.abort()
        with suppress(Exception):
            await self.close()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        came = self.direct.get(sid)
        if came is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.heard += 1
        came(QuickMsg(self, subject.decode(), reply.decode(), data, headers or b""))

    def put(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """Send a message in one piece; the names and values of its headers must be valid.

        Raises:
            nats.errors.Error: the connection has ended, or the message is too large.
        """
        if headers:
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            whole = len(head) + len(data)
            piece = f"HPUB {subject} {reply} {len(head)} {whole}\r\n".encode() + head + data + b"\r\n"
        else:
            whole = len(data)
            piece = f"PUB {subject} {reply} {whole}\r\n".encode() + data + b"\r\n"
        if whole > self._max_payload:
            raise driver.MaxPayloadError
        self.write(piece)

    def write(self, piece: bytes) -> None:
        """Send data that is already in the form of the protocol, at once.

        Raises:
            nats.errors.Error: the connection has ended.
        """
        if not self.is_connected or self._transport is None:
            raise driver.ConnectionClosedError
        if self._pending:  # written by the driver's own task, and before this
            self._transport.writelines(self._pending)
            self._pending = []
            self._pending_data_size = 0
        self._transport.write(piece)


def parsed(raw: bytes) -> dict[str, str]:
    """The headers of a message, with `Status` and `Description` if its first line has them."""
    first, *lines = raw.decode(errors="replace").split("\r\n")
    headers: dict[str, Any] = {}
    if len(first) > _PREFIX:
        status, _, description = first[_PREFIX:].strip().partition(" ")
        headers["Status"] = status
        if description:
            headers["Description"] = description
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers

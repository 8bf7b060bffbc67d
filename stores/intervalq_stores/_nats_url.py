"""What the URL of a NATS says, and what is the same for all connections. Needs no driver."""

from __future__ import annotations

from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from intervalq.errors import InvalidOption

Headers: TypeAlias = dict[str, str]

WITHIN: Final = 5.0
"""Seconds that a call may take, connecting included. Jobs wait for it: longer is an outage."""

_ADDRESS: Final = (
    "this isn't the URL of a NATS: nats://[user:password@ or token@]host[:port][,host[:port]...]; the query "
    "may have credentials=PATH of a .creds file and tls_ca=PATH; a password with : / ? # @ or % must be "
    "percent-encoded"
)


def options_of(url: str) -> dict[str, Any]:
    """What a URL says, as the driver wants it.

    Raises:
        InvalidOption: it isn't that of a NATS.
    """
    rest = url.partition("://")[2]
    address, _, query = rest.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if given.keys() - {"credentials", "tls_ca"} or "#" in rest or "/" in address.rstrip("/"):
        raise InvalidOption(_ADDRESS)
    login, at, hosts = address.rstrip("/").rpartition("@")
    servers: list[str] = []
    for host in hosts.split(","):
        try:
            parts = urlsplit(f"nats://{host}")
            port = parts.port or 4222
        except ValueError:
            raise InvalidOption(_ADDRESS) from None
        if not parts.hostname or "@" in host:
            raise InvalidOption(_ADDRESS)
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        servers.append(f"nats://{name}:{port}")
    options: dict[str, Any] = {"servers": servers}
    if at:
        user, colon, password = login.partition(":")
        options |= (
            {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
        )
    if "credentials" in given:
        options["user_credentials"] = given["credentials"]
    if "tls_ca" in given:
        import ssl  # noqa: PLC0415 - only where it is asked for

        try:
            options["tls"] = ssl.create_default_context(cafile=given["tls_ca"])
        except OSError as error:
            raise InvalidOption(f"tls_ca: {error}") from error
    return options

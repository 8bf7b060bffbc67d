"""Explains TLS failures of a PostgreSQL: libpq says only that a certificate could not be verified."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from intervalq_stores._transport import (
    Remedies,
    TLSFault,
    clear_text,
    disagreement,
    fault_of,
    is_near,
    passes,
    rated,
)

if TYPE_CHECKING:
    from psycopg import OperationalError

_ALERT: Final = re.compile(r"SSL error: ((?:\S+ )?alert .*)")
"""What libpq says of a server that refuses this client."""

_REQUEST: Final = b"\0\0\0\x08\x04\xd2\x16/"
"""The message that asks a server for TLS."""

_PATIENCE: Final = 1.0
"""The timeout, in seconds, of reading the server's certificate."""

_OWN: Final = re.compile(
    r"(?:certificate present, but|private key file|could not (?:load|read|open) (?:private|certificate)).*"
)
"""What libpq says of the files of the client's certificate and key."""

MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
"""The values of `sslmode`."""

WEAK: Final = frozenset({"disable", "allow", "prefer"})
"""The values of `sslmode` that allow clear text."""

REMEDY: Final = (
    "add sslmode=verify-full and sslrootcert=PATH to the URL (the default of sslmode is prefer, which an "
    "attacker on the network can turn into clear text)"
)

_REMEDIES: Final = Remedies(
    authority="sslrootcert=PATH",
    own="sslcert=PATH and sslkey=PATH",
    plain="write sslmode=disable for clear text",
    tls="add sslmode=verify-full",
)


async def fault(error: OperationalError, *, had_files: bool = False) -> TLSFault | None:
    """The TLS fault behind an error while connecting; None: it may pass, or has nothing to do with TLS.

    Args:
        error: what libpq raised.
        had_files: whether the files of certificates could be used before; they may be just being replaced.
    """
    message = " ".join(str(error).split())
    if "certificate verify failed" in message:
        found = await anyio.to_thread.run_sync(_look, settings(error.pgconn))
        return found or TLSFault(f"the server's certificate can't be trusted: check {_REMEDIES.authority}")
    if (alert := _ALERT.search(message)) is not None:
        return None if passes(alert[1]) else disagreement(alert[1], _REMEDIES)
    found = _named(message)
    return None if had_files and _is_of_files(message) else found


def _is_of_files(message: str) -> bool:
    return "root certificate" in message or _OWN.search(message) is not None


def _named(message: str) -> TLSFault | None:
    """The fault that a message of libpq, or of the server, names."""
    if any(one in message for one in ("does not support SSL", "wrong version number", "response to SSL")):
        return clear_text(_REMEDIES)
    if "server certificate for" in message or "get server's host name from server cert" in message:
        return TLSFault(
            "the server's certificate is for another host: use the host name of the certificate in the URL, "
            "or issue a new one; no password was sent"
        )
    if "root certificate" in message:
        return TLSFault(
            "there is no certificate authority to check the server with: give its file with "
            f"{_REMEDIES.authority}"
        )
    if (own := _OWN.search(message)) is not None:
        return TLSFault(f"the client's certificate can't be used: correct {_REMEDIES.own} ({own[0]})")
    if "valid client certificate" in message:
        return disagreement("alert certificate required", _REMEDIES)
    return None


def settings(connection: Any) -> Mapping[str, str]:  # noqa: ANN401 - one that is open, or that has failed
    """The effective settings of a connection, including those of the environment."""
    if connection is None:
        return {}
    return {one.keyword.decode(): one.val.decode() for one in connection.info if one.val is not None}


def may_show_password(given: Mapping[str, str]) -> bool:
    """Whether a password may travel to another machine in clear text."""
    return given.get("sslmode", "prefer") in WEAK and not _is_near(given)


def way(connection: Any) -> tuple[str, str]:  # noqa: ANN401 - as above
    """A rating of an open connection's security."""
    given = settings(connection)
    return rated(
        near=_is_near(given),
        encrypted=connection.ssl_in_use and given.get("sslmode", "prefer") not in WEAK,
        checked=given.get("sslmode") == "verify-full",
        remedy=REMEDY,
    )


def _is_near(given: Mapping[str, str]) -> bool:
    """Whether all servers are on this machine, by names and, if given, by addresses."""
    places = [*given.get("host", "").split(","), *given.get("hostaddr", "").split(",")]
    return all(map(is_near, places))


def rights(role: str, *, superuser: bool) -> tuple[str, str]:
    """A rating of the rights of a role."""
    if superuser:
        return "warning", (
            f"role {role!a} is a superuser and may do everything, even with the data of others: give "
            "intervalq a role of its own; SECURITY.md has the grants"
        )
    return "ok", f"role {role!a} is not a superuser"


def _look(given: Mapping[str, str]) -> TLSFault | None:
    """Get the server's certificate, and check it with `ssl`, which says what is wrong."""
    host, port = given.get("host", ""), int(given.get("port", "5432"))
    root = given.get("sslrootcert", "")
    with suppress(OSError):
        context = ssl.create_default_context(cafile=None if root in {"", "system"} else root)
        context.check_hostname = given.get("sslmode") == "verify-full"
        with socket.create_connection((given.get("hostaddr") or host, port), timeout=_PATIENCE) as way:
            way.sendall(_REQUEST)
            if way.recv(1) != b"S":
                return clear_text(_REMEDIES)
            try:
                context.wrap_socket(way, server_hostname=host).close()
            except ssl.SSLError as error:
                return fault_of(error, _REMEDIES)
    return None

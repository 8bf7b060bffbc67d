"""Transport security: errors of TLS, and warnings about passwords in clear text."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from typing import Final, NamedTuple

log: Final = logging.getLogger("intervalq")

_warned: Final[set[str]] = set()
"""Stores about which this process has warned: once is enough."""

_PATIENCE: Final = 0.5
"""The timeout, in seconds, of a second look at a server that ended a connection."""

_EARLY: Final = frozenset({9, 11})  # numbers of OpenSSL, X509_V_ERR_...
_EXPIRED: Final = frozenset({10, 12})
_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21, 24, 27})
_OTHER_HOST: Final = frozenset({62, 63, 64})
_PASSING: Final = ("ALERT_INTERNAL_ERROR", "ALERT_USER_CANCELLED")
"""Alerts of a server that is in trouble or ends, whatever the client's options are."""

_NO_TLS: Final = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "UNKNOWN_PROTOCOL",
        "HTTP_REQUEST",
        "RECORD_LAYER_FAILURE",
        "PACKET_LENGTH_TOO_LONG",
    }
)


class TLSFault(Exception):
    """Server and client don't agree on TLS. The text says why, and what to do."""


class Remedies(NamedTuple):
    """What to write in the URL of a kind of store, for the texts of faults."""

    authority: str
    """The file of a certificate authority."""
    own: str
    """A certificate of the client's own, and its key."""
    plain: str
    """For a server without TLS."""
    tls: str
    """For a server with TLS."""


def is_near(host: str) -> bool:
    """Whether data sent to a host stays on this machine: a loopback address, or the path of a socket."""
    if not host or host.startswith(("/", "@")) or host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0].strip("[]")).is_loopback
    except ValueError:
        return False


def rated(*, near: bool, encrypted: bool, checked: bool, remedy: str) -> tuple[str, str]:
    """A rating of the connection to a server for operators: `ok` or `warning`, and a sentence."""
    if encrypted and checked:
        return "ok", "the connection is encrypted, and the server's certificate is checked"
    if near:
        return "ok", "the connection stays on this machine"
    if encrypted:
        return "warning", f"the connection is encrypted, but the server's identity is not checked: {remedy}"
    return "warning", f"everybody on the network can read and change the data: {remedy}"


def warn_of_password(store: str, remedy: str) -> None:
    """Warn, once per process and store, that a password may be read on its way to another machine."""
    if store not in _warned:
        _warned.add(store)
        log.warning(
            "%s: the password may travel in clear text to another machine, so everybody on the network can "
            "read it: %s",
            store, remedy,
        )  # fmt: skip


def no_passphrase() -> str:
    """What to give to `ssl` as a passphrase, so that it doesn't ask for one on the terminal."""
    raise ValueError("the private key has a passphrase: give one without")


def clear_text(remedies: Remedies) -> TLSFault:
    """The fault of a server without TLS, or of a network that hides the server's offer of TLS."""
    return TLSFault(
        "TLS is required, but the server uses clear text there, or something on the network has removed its "
        f"offer of TLS; no password was sent: enable TLS on the server, or {remedies.plain}"
    )


def fault_of(error: BaseException | None, remedies: Remedies) -> TLSFault | None:
    """The TLS fault behind an error while connecting; None: the error is about something else.

    Args:
        error: the error, which may be one of TLS, or caused by one.
        remedies: of the kind of store.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    if seen is None or isinstance(seen, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None
    if passes(seen.reason or ""):
        return None
    if isinstance(seen, ssl.SSLCertVerificationError):
        return _certificate(seen.verify_code, seen.verify_message, remedies)
    if seen.reason in _NO_TLS:
        return clear_text(remedies)
    return disagreement(seen.reason or str(seen), remedies)


def passes(reason: str) -> bool:
    """Whether what OpenSSL says is no fault of TLS, but trouble of the server that passes."""
    said = reason.upper().replace(" ", "_")
    return any(alert in said for alert in _PASSING)


def disagreement(reason: str, remedies: Remedies) -> TLSFault:
    """The fault behind what OpenSSL says, for example of an alert that the server has sent."""
    said = reason.upper().replace(" ", "_")
    if "ALERT" in said and said.endswith("CERTIFICATE_REQUIRED"):
        why = f"the server demands a certificate of the client: give it with {remedies.own}"
    elif "ALERT" in said and ("CERTIFICATE" in said or said.endswith(("UNKNOWN_CA", "ACCESS_DENIED"))):
        why = f"the server refuses the client's certificate: give one that it accepts with {remedies.own}"
    else:
        why = (
            "server and client can't agree on it: allow the same versions and ciphers; if the server demands "
            f"a certificate of the client, give it with {remedies.own}"
        )
    return TLSFault(f"TLS is required, but {why} ({reason})")


async def look_again(
    host: str, port: int, context: ssl.SSLContext | None, remedies: Remedies, *, after_hello: bool = False
) -> TLSFault | None:
    """The fault for which a server may have ended a connection without an answer; None: none was found.

    A server checks the client's certificate while the client already sends. Its alert is then often lost
    with the connection, so this connects once more, and only listens.

    Args:
        host: of the server.
        port: of the server.
        context: the client's TLS; None: it used clear text, which a server with TLS doesn't answer.
        remedies: of the kind of store.
        after_hello: whether the server sends a line before TLS begins.
    """
    tls = context or _unchecked()
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(host, port, ssl=None if after_hello else tls)
            try:
                if after_hello:
                    await reader.readline()
                    await writer.start_tls(tls, server_hostname=host)
                if context is not None:
                    await reader.read(1)
            finally:
                writer.transport.abort()
    except ssl.SSLError as error:
        if context is not None:
            return fault_of(error, remedies)
        if "ALERT" not in (error.reason or ""):
            return None
    except (OSError, TimeoutError, ValueError):  # ValueError: a line of more than 64 KiB
        return None
    return None if context else TLSFault(f"the server uses TLS there, but the URL doesn't: {remedies.tls}")


def _unchecked() -> ssl.SSLContext:
    """The TLS of a client that only asks whether there is TLS, and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _certificate(code: int, message: str, remedies: Remedies) -> TLSFault:
    if code in _EARLY:
        why = "isn't valid yet: set the clock of this machine"
    elif code in _EXPIRED:
        why = "has expired: renew it, or set the clock of this machine"
    elif code in _UNKNOWN:
        why = (
            "is from an unknown authority: give the certificate file of its authority with "
            f"{remedies.authority}"
        )
    elif code in _OTHER_HOST:
        why = "is for another host: use the host name of the certificate in the URL, or issue a new one"
    else:
        why = "can't be trusted: issue a new one"
    return TLSFault(f"the server's certificate {why} ({message.rstrip('.')}); no password was sent")

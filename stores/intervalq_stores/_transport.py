"""Transport security: errors of TLS, and warnings about passwords in clear text."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from typing import Final

log: Final = logging.getLogger("intervalq")

_warned: Final[set[str]] = set()
"""Stores about which this process has warned: once is enough."""

_EXPIRED: Final = frozenset({9, 10, 11, 12})  # numbers of OpenSSL, X509_V_ERR_...
_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21, 24, 27})
_OTHER_HOST: Final = frozenset({62, 63, 64})
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
    """TLS was required and failed; the text says why, and what to do. Nothing secret has been sent."""


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


def clear_text(remedy: str) -> TLSFault:
    """The fault of a server without TLS, or of a network that hides the server's offer of TLS."""
    return TLSFault(
        "TLS is required, but the server uses clear text there, or something on the network has removed its "
        f"offer of TLS; no password was sent: enable TLS on the server, or {remedy}"
    )


def fault_of(error: BaseException | None, authority: str, plain: str) -> TLSFault | None:
    """The TLS fault behind an error while connecting; None: the error is about something else.

    Args:
        error: the error, which may be one of TLS, or caused by one.
        authority: how the URL names the file of a certificate authority.
        plain: what to write for a server without TLS.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ or seen.__context__
    if seen is None or isinstance(seen, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None
    if isinstance(seen, ssl.SSLCertVerificationError):
        return _certificate(seen.verify_code, seen.verify_message, authority)
    if seen.reason in _NO_TLS:
        return clear_text(plain)
    return TLSFault(f"TLS is required, but server and client can't agree on it: {seen.reason or seen}")


def _certificate(code: int, message: str, authority: str) -> TLSFault:
    if code in _EXPIRED:
        why = "has expired, or isn't valid yet: renew it, or set the clock of this machine"
    elif code in _UNKNOWN:
        why = f"is from an unknown authority: give the certificate file of its authority with {authority}"
    elif code in _OTHER_HOST:
        why = "is for another host: use the host name of the certificate in the URL, or issue a new one"
    else:
        why = "can't be trusted: issue a new one"
    return TLSFault(f"the server's certificate {why} ({message.rstrip('.')}); no password was sent")

"""How safe the way to a server is: what its TLS lacks, and passwords that travel in clear text."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from typing import Final

log: Final = logging.getLogger("intervalq")

_warned: Final[set[str]] = set()
"""Stores that this process has warned of: once is enough."""

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
    """TLS was asked for and can't be had; says why, and what to do. Nothing secret has been sent."""


def is_near(host: str) -> bool:
    """Whether what is sent to a host stays on this machine: a loopback address, or the path of a socket."""
    if not host or host.startswith(("/", "@")) or host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0].strip("[]")).is_loopback
    except ValueError:
        return False


def rated(*, near: bool, encrypted: bool, checked: bool, remedy: str) -> tuple[str, str]:
    """What an operator should know of the way to a server: `ok` or `warning`, and a sentence."""
    if encrypted and checked:
        return "ok", "the way to it is encrypted, and its certificate is checked"
    if near:
        return "ok", "what is said to it stays on this machine"
    if encrypted:
        return "warning", f"the way to it is encrypted, but nobody makes sure whose server answers: {remedy}"
    return "warning", f"everybody on the way to it can read and change what is said: {remedy}"


def warn_of_password(store: str, remedy: str) -> None:
    """Say, once a process, that a password may be read on its way to another machine."""
    if store not in _warned:
        _warned.add(store)
        log.warning(
            "%s: the password may travel in clear text to another machine, where everybody on the way can "
            "read it: %s",
            store, remedy,
        )  # fmt: skip


def clear_text(remedy: str) -> TLSFault:
    """The fault of a server that doesn't speak TLS, or of a way that hides that it does."""
    return TLSFault(
        "TLS was asked for, but the server speaks clear text there, or something on the way has removed its "
        f"offer; no password was sent: switch TLS on at the server, or {remedy}"
    )


def fault_of(error: BaseException | None, authority: str, plain: str) -> TLSFault | None:
    """What an error while connecting says of TLS; None: nothing.

    Args:
        error: it, or what it was raised from, may be one of TLS.
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
    return TLSFault(f"TLS was asked for, and server and client don't agree about it: {seen.reason or seen}")


def _certificate(code: int, said: str, authority: str) -> TLSFault:
    if code in _EXPIRED:
        why = "has expired, or isn't valid yet: renew it, or set the clock of this machine"
    elif code in _UNKNOWN:
        why = f"is of an unknown authority: name the file of the server's authority with {authority}"
    elif code in _OTHER_HOST:
        why = "is for another host: write the host in the URL as the certificate has it, or have it made anew"
    else:
        why = "can't be trusted: have it made anew"
    return TLSFault(f"the server's certificate {why} ({said.rstrip('.')}); no password was sent")

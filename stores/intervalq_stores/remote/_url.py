"""The URL of a service: its hosts, a token, and certificates. Needs no driver."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from intervalq.errors import InvalidOption
from intervalq_stores._transport import is_near, no_passphrase, rated, warn_of_password

_PORT: Final = 37706
_OPTIONS: Final = frozenset({"tls_ca", "tls_cert", "tls_key"})
_ADDRESS: Final = (
    "this isn't the URL of a service: intervalq://[token@]host[:port][,host[:port]...], intervalqs:// with "
    "TLS; the query may have tls_ca=PATH of a certificate authority, and tls_cert=PATH and tls_key=PATH of a "
    "certificate of your own, each of which demands TLS, too; a token with : / ? # @ or % must be "
    "percent-encoded"
)
_TLS: Final = "begin the URL with intervalqs://, or add tls_ca=PATH of a certificate authority"


class Where(NamedTuple):
    """What a URL says."""

    hosts: tuple[str, ...]
    """Addresses with ports, in the order in which they are tried."""
    token: str | None
    has_tls: bool
    files: dict[str, str]
    """Paths of certificates: `tls_ca`, `tls_cert`, `tls_key`."""

    def pems(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents of the files, as gRPC wants them: the authority, the key, and the certificate.

        Raises:
            InvalidOption: one can't be used.
        """
        import ssl  # noqa: PLC0415 - only needed here

        own = {name: path for name, path in self.files.items() if name != "tls_ca"}
        try:
            context = ssl.create_default_context(cafile=self.files.get("tls_ca"))
            if own:
                context.load_cert_chain(own["tls_cert"], own["tls_key"], password=no_passphrase)
            found = {name: Path(path).read_bytes() for name, path in self.files.items()}
        except (OSError, ValueError) as error:
            names = ", ".join(f"{name}={path}" for name, path in self.files.items())
            raise InvalidOption(f"{names} can't be used: {error}") from error
        return found.get("tls_ca"), found.get("tls_key"), found.get("tls_cert")

    @property
    def is_near(self) -> bool:
        """Whether all hosts are this machine."""
        return all(is_near(urlsplit(f"//{host}").hostname or "") for host in self.hosts)

    def rated(self) -> tuple[str, str]:
        """What an operator should know of the security of the connection."""
        return rated(near=self.is_near, encrypted=self.has_tls, checked=self.has_tls, remedy=_TLS)

    def warn(self, store: str) -> None:
        """Warn if the token may travel to another machine in clear text."""
        if self.token is not None and not self.has_tls and not self.is_near:
            warn_of_password(store, _TLS)


def where(url: str) -> Where:
    """What a URL says.

    Raises:
        InvalidOption: it is no URL of a service.
    """
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    login, at, names = address.rstrip("/").rpartition("@")
    pairs = parse_qsl(query, keep_blank_values=True)
    files = dict(pairs)
    if "#" in rest or "/" in login + names or ":" in login or (at and not login):
        raise InvalidOption(_ADDRESS)
    if (
        not files.keys() <= _OPTIONS
        or len(files) < len(pairs)
        or ("tls_cert" in files) != ("tls_key" in files)
    ):
        raise InvalidOption(_ADDRESS)
    hosts: list[str] = []
    for name in names.split(","):
        try:
            parts = urlsplit(f"//{name}")
            port = parts.port or _PORT
        except ValueError:
            raise InvalidOption(_ADDRESS) from None
        if not parts.hostname:
            raise InvalidOption(_ADDRESS)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        hosts.append(f"{host}:{port}")
    has_tls = scheme.lower() == "intervalqs" or bool(files)
    return Where(tuple(hosts), unquote(login) if at else None, has_tls, files)

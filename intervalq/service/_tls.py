"""The certificates of a service."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from intervalq.errors import InvalidOption


class Keys(NamedTuple):
    """What gRPC wants: the contents of the files, in PEM."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a service's certificate, in PEM. They are read once, when the service begins."""

    cert: str
    """The certificate, with the chain to the one that clients know."""
    key: str
    """Its private key, without a passphrase."""
    client_ca: str | None = None
    """Accept only clients that have a certificate of this authority (mutual TLS). None: any client."""

    def read(self) -> Keys:
        """The contents of the files.

        Raises:
            InvalidOption: one can't be read, or they don't belong together.
        """
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
            client_ca = None if self.client_ca is None else Path(self.client_ca).read_bytes()
            return Keys(Path(self.cert).read_bytes(), Path(self.key).read_bytes(), client_ca)
        except (OSError, ValueError) as error:  # of ssl, too
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            names = ", ".join(one for one in (self.cert, self.key, self.client_ca) if one is not None)
            raise InvalidOption(f"the certificates in {names} can't be used: {reason}") from error

    def options(self) -> dict[str, Any]:
        """The same for uvicorn."""
        return {
            "ssl_certfile": self.cert,
            "ssl_keyfile": self.key,
            "ssl_ca_certs": self.client_ca,
            "ssl_cert_reqs": ssl.CERT_NONE if self.client_ca is None else ssl.CERT_REQUIRED,
        }


def _no_passphrase() -> str:
    raise ValueError("the private key has a passphrase: give one without")

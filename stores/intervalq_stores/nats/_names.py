"""The encoding of text in the subjects and headers of NATS."""

from __future__ import annotations

import re


def encoded(name: str) -> str:
    """A name as one token of a subject: special characters are written as = and two digits."""
    return re.sub(
        r"[^A-Za-z0-9_:-]", lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), name
    )


def decoded(token: str) -> str:
    """The name that `encoded` wrote."""
    if "=" not in token:
        return token
    return re.sub(
        r"(?:=[0-9A-F]{2})+",
        lambda found: bytes.fromhex(found[0].replace("=", "")).decode(errors="replace"),
        token,
    )

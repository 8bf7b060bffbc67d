"""How secure a Redis is: the connection to it, and the rights of this user."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlsplit

from intervalq.errors import StoreError, Unauthorized
from intervalq_stores._transport import is_near, rated
from intervalq_stores.redis._ports import Address, Caller

TLS: Final = (
    "begin the URL with rediss:// (TLS), with ssl_ca_certs=PATH unless the system knows its authority"
)


def host_of(url: str) -> str:
    """The host of a URL; empty: a socket of this machine."""
    parts = urlsplit(url)
    if parts.scheme.lower() == "unix":
        return ""
    return (parse_qs(parts.query).get("host") or [parts.hostname or ""])[0]


def is_encrypted(url: str) -> bool:
    """Whether a URL requires TLS."""
    return urlsplit(url).scheme.lower().startswith("rediss")


def way(url: str) -> tuple[str, str]:
    """A rating of the connection to the server of a URL."""
    given = parse_qs(urlsplit(url).query)
    checked = given.get("ssl_cert_reqs", ["required"]) == ["required"] and (
        given.get("ssl_check_hostname", ["true"])[0].lower() not in {"false", "0", "no", "off", "f", "n"}
    )
    return rated(near=is_near(host_of(url)), encrypted=is_encrypted(url), checked=checked, remedy=TLS)


async def rights(client: Caller, node: Address) -> tuple[str, str]:
    """A rating of the rights of this user."""
    try:
        user = (await client.call("ACL", "WHOAMI", node=node)).decode(errors="replace")
        answer = await client.call("ACL", "GETUSER", user, node=node)
        found = dict(zip(answer[::2], answer[1::2], strict=False))
        # Redis 6 returns a list of patterns.
        everything = found[b"commands"] == b"+@all" and found[b"keys"] in (b"~*", [b"*"])
    except Unauthorized:
        return "ok", "the rights of this user are limited: it can't even read them"
    except (StoreError, AttributeError, KeyError, TypeError, ValueError):
        return "warning", "the rights of this user are unknown"
    if everything:
        return "warning", (
            f"user {user!a} may do everything on this server, even with the data of others: give intervalq a "
            "user of its own; SECURITY.md has the ACL"
        )
    return "ok", f"the rights of user {user!a} are limited"

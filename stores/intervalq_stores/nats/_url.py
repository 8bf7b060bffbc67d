"""The options in a NATS URL, and those that are the same for all connections. Needs no driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from intervalq.errors import InvalidOption
from intervalq_stores._transport import is_near, no_passphrase, rated, warn_of_password

Headers: TypeAlias = dict[str, str]

WITHIN: Final = 5.0
"""Seconds that a call may take, including connecting. Jobs wait for it; a longer wait is an outage."""

_MAX_WAITING: Final = 512
"""How many requests may wait for the tasks of a queue, over all workers, unless the URL says so."""

_ADDRESS: Final = (
    "this isn't the URL of a NATS: nats://[user:password@ or token@]host[:port][,host[:port]...], tls:// "
    "with TLS; the query may have credentials=PATH of a .creds file; tls_ca=PATH of a certificate authority, "
    "and tls_cert=PATH and tls_key=PATH of a certificate of your own, each of which demands TLS, too; and "
    "how streams are made: replicas=1 to 5, storage=file or memory, cluster=NAME and tags=TAG,TAG of where, "
    "max_waiting=COUNT of requests for tasks of a queue; a password with : / ? # @ or % must be "
    "percent-encoded"
)

_TLS: Final = "begin the URL with tls://, or add tls_ca=PATH of a certificate authority: either demands TLS"
_FILES: Final = frozenset({"tls_ca", "tls_cert", "tls_key"})
_LOGIN: Final = _FILES | {"credentials"}
_MADE: Final = frozenset({"replicas", "storage", "cluster", "tags", "max_waiting"})


class Made(NamedTuple):
    """How missing streams and consumers are created."""

    stream: dict[str, Any]
    """Fields of the configuration of streams."""
    max_waiting: int


def made_by(url: str) -> Made:
    """The options in a URL for streams and consumers to be created.

    Raises:
        InvalidOption: an option is invalid.
    """
    given = _query(url)
    stream: dict[str, Any] = {}
    if "replicas" in given:
        stream["num_replicas"] = _number(given["replicas"], 5)
    if "storage" in given:
        stream["storage"] = given["storage"]
        if stream["storage"] not in {"file", "memory"}:
            raise InvalidOption(_ADDRESS)
    placement: dict[str, Any] = {"cluster": given["cluster"]} if given.get("cluster") else {}
    if given.get("tags"):
        placement["tags"] = given["tags"].split(",")
    if placement:
        stream["placement"] = placement
    return Made(stream, _number(given.get("max_waiting", str(_MAX_WAITING)), 1 << 30))


def _query(url: str) -> dict[str, str]:
    return dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))


def _number(text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InvalidOption(_ADDRESS)
    return int(text)


def options_of(url: str) -> dict[str, Any]:
    """The options in a URL, in the form of the driver.

    Raises:
        InvalidOption: it isn't a valid URL of a NATS server.
    """
    rest = url.partition("://")[2]
    address, given = rest.partition("?")[0], _query(url)
    if given.keys() - (_LOGIN | _MADE) or "#" in rest or "/" in address.rstrip("/"):
        raise InvalidOption(_ADDRESS)
    if ("tls_cert" in given) != ("tls_key" in given):
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
    if demands_tls(url):
        import ssl  # noqa: PLC0415 - only needed here

        try:
            options["tls"] = context = ssl.create_default_context(cafile=given.get("tls_ca"))
            if "tls_cert" in given:
                context.load_cert_chain(given["tls_cert"], given["tls_key"], password=no_passphrase)
        except (OSError, ValueError) as error:
            raise InvalidOption(f"a file of tls_ca, tls_cert or tls_key can't be used: {error}") from error
    return options


def demands_tls(url: str) -> bool:
    """Whether nothing may be sent without TLS."""
    return url.partition("://")[0].lower() == "tls" or not _FILES.isdisjoint(_query(url))


def way(url: str, *, encrypted: bool) -> tuple[str, str]:
    """What an operator should know of the security of the connection to a URL's servers."""
    hosts = [urlsplit(server).hostname or "" for server in options_of(url)["servers"]]
    checked = encrypted and demands_tls(url)  # otherwise an attacker may remove it
    return rated(near=all(map(is_near, hosts)), encrypted=checked, checked=checked, remedy=_TLS)


def rights(info: Mapping[str, Any]) -> tuple[str, str]:
    """What an operator should know of a user's permissions, according to the server."""
    user = info.get("user") or "no name"
    if info and not info.get("permissions"):
        return "warning", (
            f"the user ({user!a}) may do everything in its account, with the data of others, too: give "
            "intervalq a user of its own, SECURITY.md has its permissions"
        )
    return "ok", "the rights of this user are limited"


def warn_of_login(url: str, store: str) -> None:
    """Warn if a password or token may travel to another machine in clear text."""
    options = options_of(url)
    login = options.keys() & {"user", "token"}
    hosts = [urlsplit(server).hostname or "" for server in options["servers"]]
    if login and not demands_tls(url) and not all(map(is_near, hosts)):
        warn_of_password(store, _TLS)

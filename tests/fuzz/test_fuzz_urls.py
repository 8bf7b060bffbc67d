from __future__ import annotations

import io
import logging
import pickle
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.material import CANARY, fuzz, mutated, odd_text
from intervalq import IntervalQueue
from intervalq.errors import IntervalqError
from intervalq.store import open_store, shown_url
from intervalq.sync import IntervalQueue as BlockingQueue

SCHEMES = [
    "memory", "file", "sqlite", "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "postgresql",
    "postgres", "nats", "REDIS", "http", "nowhere", "",
]  # fmt: skip
HOSTS = [
    "",
    "host",
    "127.0.0.1",
    "[::1]",
    "host:6379",
    "a:1,b:2",
    "host:99999",
    "host:port",
    "%2Ftmp",
    "[",
    "h%",
]
ENDS = [
    "",
    "/",
    "/0",
    "/db",
    "/a/b.json",
    "/a b?#",
    "?db=1",
    "?timeout=1",
    "?ssl_ca_certs=/x",
    "#x",
    "?",
    "/%00",
]


def urls() -> st.SearchStrategy[str]:
    users = st.sampled_from(["", "user@", ":pass@", "user:pass@", "us%40er:p%2Fw@", "@", "a:b:c@"])
    return st.builds(
        "{}://{}{}{}".format,
        st.sampled_from(SCHEMES),
        users,
        st.sampled_from(HOSTS),
        st.sampled_from(ENDS),
    )


@fuzz(300)
@example(url="~nobody-here/state.json")
@example(url="\ud800")
@example(url="file:///\ud800")
@example(url="x" * 10_000_000)
@example(url="redis://" + "x" * 1_000_000)
@given(url=mutated(urls()) | odd_text())
def test_a_url_is_opened_or_refused(url: str) -> None:
    try:
        store = open_store(url)
    except IntervalqError as error:
        assert len(str(error)) < 600
        assert str(error).isprintable()
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    else:
        assert isinstance(store.url, str)
        assert shown_url(store.url) == store.url
    assert isinstance(shown_url(url), str)


@st.composite
def with_secret(draw: st.DrawFn) -> str:
    """A URL with a password in its place: escaped or not, in a valid or an invalid URL."""
    odd = st.sampled_from(
        ["", "", "/", "#", "?", "@", ":", "%", "%2F", "[", "]", "&", "=", " ", "\\", "\n", "é", "1"]
    )
    secret = draw(odd) + CANARY + draw(odd)
    user = draw(st.sampled_from(["", "user", "us/er", "us#er", "us?er"]))
    host, end = draw(st.sampled_from(HOSTS)), draw(st.sampled_from(ENDS))
    scheme = draw(st.sampled_from(SCHEMES))
    separator = draw(st.sampled_from(["://", "://", "://", ":/", ":", "//", ":///"]))
    if scheme in {"file", "sqlite"} and separator == ":///":
        separator = "://"  # otherwise it is a path, which is no secret
    if draw(st.booleans()):
        return f"{scheme}{separator}{user}:{secret}@{host}{end}"
    name = draw(st.sampled_from(["password", "sslpassword", "username", "x", "oauth_client_secret"]))
    return f"{scheme}://{host}{end}{'&' if '?' in end else '?'}{name}={CANARY}"


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that any logger writes."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.DEBUG)
    yield heard
    root.setLevel(level)
    root.removeHandler(handler)


@fuzz(300)
@example(url=f"redis:/user:{CANARY}@host/0")
@example(url=f"redis:user:{CANARY}@host/0")
@example(url=f"redis//user:{CANARY}@host/0")
@example(url=f"memory://user:{CANARY}@host/0")
@example(url=f"user:{CANARY}@host://x")
@example(url=f"//:{CANARY}@[://x")
@example(url=f"file://:[{CANARY}@[::1]")
@example(url=f"sqlite://:[{CANARY}@[::1]")
@example(url=f"postgresql://:%{CANARY}@")
@example(url=f"nats://{CANARY}@host")
@example(url=f"nats://a,u:{CANARY}@host:4222,b")
@given(url=with_secret())
def test_a_secret_in_a_url_is_not_shown(logged: io.StringIO, url: str) -> None:
    reported = [shown_url(url)]
    for kind in (IntervalQueue, BlockingQueue):
        queue = kind("q", interval=1, store=url)
        reported += [repr(queue), str(queue), repr(queue["key"]), repr(getattr(queue, "_options", ""))]
    try:
        store = open_store(url)
    except IntervalqError as error:
        reported += [str(error), repr(error), repr(error.args), repr(vars(error))]
        reported.append("".join(_without_source(error)))
    else:
        reported += [store.url, repr(store), str(store)]
    reported.append(logged.getvalue())
    assert not [text for text in reported if CANARY in text]


def _without_source(error: BaseException) -> list[str]:
    """A traceback as it is printed."""
    return traceback.format_exception(error)

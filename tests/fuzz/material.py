"""Input of fuzz tests for parsers: odd text, mutated valid text, numbers at limits; and how many examples.

In CI each test takes a few seconds. `INTERVALQ_FUZZ_EXAMPLES=100000 pytest --timeout 0 tests/fuzz` uses that
many examples, for a manual search.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CANARY: Final = "c4n4ry"
"""A secret, which must not appear anywhere."""

LIMITS: Final = [
    0, 1, -1, 2**31, 2**32, 2**53 - 1, 2**53, -(2**53), 2**63 - 1, 2**63, 2**64,
]  # fmt: skip

ODD: Final = [
    "", " ", "\0", "\n", "\r\n", "\t", "\x1b[2J", "\x7f", "\u0085", "\u200f", "\u2028", "\u202e", "\ud800",
    "\udcff", "\ufeff", "e\u0301", "\uff41", "\u0663", "\U0001f600", "-", "--", "%", "%00", "%2F", "{}",
    "{{", "}",
    "nan", "inf", "-inf", "1e999", "1e-999", "0x1", "1_0", "00", "-0", "+1", "9" * 400, "9" * 5000, "null",
    "true",
    "~nobody-here", "../..", "/", ":", "@", "#", "?", "&", "=", "[", "]", "\\", "'", '"', "`", "$(", ";", "*",
]  # fmt: skip


def fuzz(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with this many examples, or as many as the environment requests."""
    asked = os.environ.get("INTERVALQ_FUZZ_EXAMPLES")
    return settings(
        max_examples=int(asked) if asked else examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def odd_text() -> st.SearchStrategy[str]:
    """Any text at all, including lone surrogates and very long text."""
    return st.one_of(
        st.text(max_size=30),
        st.text(st.characters(), max_size=10),
        st.sampled_from(ODD),
        st.builds(
            lambda piece, size: (piece * size)[:size],
            st.sampled_from(ODD[1:40]),
            st.sampled_from([2, 129, 9000]),
        ),
    )


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[str]) -> str:
    """Valid text with a few pieces removed, inserted, doubled, or moved."""
    text = draw(valid)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        piece = draw(st.sampled_from(ODD) | st.text(max_size=4) | valid | st.just(text[start:end] * 2))
        text = text[:start] + piece + text[end:]
    return text


def numbers() -> st.SearchStrategy[Any]:
    """Numbers of all kinds, mostly at limits."""
    return st.one_of(
        st.sampled_from(LIMITS),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.sampled_from([1e-6, 0.1, 1e15, 1.7e308, 5e-324]),
        st.sampled_from([400, 4000]).map(lambda digits: 10**digits),
    )


def anything() -> st.SearchStrategy[Any]:
    """Values that a caller may pass by mistake, besides text of the right kind."""
    return st.one_of(
        st.none(),
        st.booleans(),
        numbers(),
        st.sampled_from([5000, 9000]).map(lambda digits: -(10**digits)),  # more than Python writes
        st.timedeltas(),
        st.decimals(),
        st.fractions(),
        st.complex_numbers(),
        st.binary(max_size=10),
        odd_text(),
        st.lists(st.integers(), max_size=2),
        st.just(object),
    )


def json_values() -> st.SearchStrategy[Any]:
    """Any JSON value, as Python reads it, including NaN, infinities, and lone surrogates."""
    leaves = st.none() | st.booleans() | numbers() | st.text(st.characters(), max_size=5)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    )

"""The bounds of the estimate of a server's clock."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq_stores.nats._queue.clock import ServerClock
from stores.nats_steps import NOW


def test_bounds_narrow_with_answers_and_widen_with_age() -> None:
    clock = ServerClock()
    assert not clock.is_fresh(0)
    clock.learn(1_000, 1_400, 51_200)
    assert (clock.earliest(1_400), clock.latest(1_400)) == (51_199, 51_602)
    clock.learn(2_000, 2_100, 52_050)
    assert clock.latest(2_100) - clock.earliest(2_100) <= 103
    assert clock.is_fresh(2_100 + 99_000)
    assert not clock.is_fresh(2_100 + 100_000)
    bounds = [clock.latest(at) - clock.earliest(at) for at in range(2_100, 2_002_100, 500_000)]
    assert all(later > earlier for earlier, later in pairwise(bounds))
    clock.learn(3_000_000, 3_000_100, 60_000)  # the clock was set
    assert clock.earliest(3_000_100) <= 60_100
    assert clock.latest(3_000_100) >= 60_000


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_bounds_hold(seed: int) -> None:
    """They hold for any drift within the limit, and however long answers take."""
    random = Random(seed)
    clock, rate, at = ServerClock(), 1 + random.uniform(-5e-4, 5e-4), 0
    for _ in range(20):
        sent = at + random.randint(0, 10**7)
        stored = sent + random.randint(0, 3_000)
        received = stored + random.randint(0, 3_000)
        clock.learn(sent, received, int(NOW + stored * rate))
        at = received + random.randint(0, 10**7)
        assert clock.earliest(at) <= NOW + at * rate <= clock.latest(at)

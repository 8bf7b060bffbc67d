"""The time for which the clock is watched before a slot: it grows after misses and shrinks after hits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq._timing.precision import SHARE, Looking, Precision

SECOND = 1_000_000
MAX_LOOK = 5_000


def settled(share: float = SHARE, typical: int = 300) -> Precision:
    """The time after one miss, in a process that has not watched the clock recently."""
    precision = Precision(share, Looking())
    precision.missed(typical)
    return precision


WAITS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3_000), st.booleans(), st.integers(0, 10**6)), max_size=60
)


@given(waits=WAITS, share=st.sampled_from([0.01, SHARE, 0.5, 1.0]), rounds=st.integers(1, 40))
def test_the_share_is_bounded_whatever_is_asked(
    waits: list[tuple[int, int, bool, int]], share: float, rounds: int
) -> None:
    """The share holds over all queues of a process, in any second, although they would watch all the time."""
    looking = Looking()
    queues = [Precision(share, looking) for _ in range(3)]
    at = spent = 0
    for which, sleeps, misses, typical in waits * rounds:
        queue = queues[which]
        if misses:
            queue.missed(typical)
        else:
            queue.kept()
        look = queue.look(at + sleeps)
        assert 0 <= look <= MAX_LOOK
        at += sleeps + look
        queue.looked(at, look)
        spent += look
        assert spent <= share * (at + SECOND) + MAX_LOOK
        assert looking.share(at) <= share + MAX_LOOK / SECOND


@pytest.mark.parametrize("share", [0.01, SHARE, 0.5])
def test_who_misses_all_the_time_looks_for_nearly_all_of_the_share(share: float) -> None:
    precision = settled(share)
    at = spent = 0
    while at < 20 * SECOND:
        precision.missed(2_000)
        look = precision.look(at)
        at += 5_000
        precision.looked(at, look)
        spent += look
    assert 0.5 * share <= spent / at <= 1.1 * share


def test_it_is_longer_the_more_slots_are_missed_up_to_what_timers_may_do() -> None:
    precision, looks = Precision(SHARE, Looking()), [0]
    assert precision.look(0) == 0, "nothing was missed"
    for _ in range(20):
        precision.missed(100)
        looks.append(precision.look(0))
    assert looks[1:4] == [200, 300, 400], "twice as late as it usually wakes, and more while that doesn't do"
    assert looks[-1] == 400, "what is later than that is no timer"
    precision.missed(SECOND)
    assert precision.look(0) == MAX_LOOK
    precision = settled(typical=SECOND)
    assert precision.look(0) == MAX_LOOK


def test_a_slot_that_is_missed_while_it_looks_makes_it_look_less() -> None:
    """The process lost the processor, which happens the sooner the more of it was used."""
    precision = settled(typical=1_000)
    precision.missed(1_000, looked=True)
    assert precision.look(0) == 1_000
    for _ in range(20):
        precision.missed(1_000, looked=True)
    assert precision.look(0) == 0


def test_it_is_shorter_with_each_slot_that_is_kept_down_to_nothing() -> None:
    precision, looks = settled(typical=1_000), []
    for _ in range(1_500):
        looks.append(precision.look(0))
        precision.kept()
    assert looks == sorted(looks, reverse=True)
    assert looks[0] == 2_000
    assert looks[100] > 500, "slowly: the next miss costs more than a look"
    assert precision.look(0) == 0


def test_it_gets_shorter_as_the_share_is_used_up_and_comes_back_with_time() -> None:
    looking = Looking()
    precision = Precision(SHARE, looking)
    precision.missed(1_000)
    looking.add(0, int(SHARE * SECOND * 0.4))
    assert precision.look(0) == 2_000
    looking.add(0, int(SHARE * SECOND * 0.4))
    assert precision.look(0) == pytest.approx(800, abs=10)
    looking.add(0, int(SHARE * SECOND * 0.4))
    assert precision.look(0) == 0
    assert precision.look(SECOND) == pytest.approx(2_000 * 2 * (1 - 1.2 * 0.3679), abs=300)
    assert precision.look(10 * SECOND) == 2_000


def test_none_means_none() -> None:
    precision = settled(0, 10_000)
    for _ in range(10):
        precision.missed(10_000)
        assert precision.look(0) == 0
        precision.kept()
    assert precision.look(SECOND) == 0


def test_a_clock_that_stands_still_or_goes_back_gives_nothing_back() -> None:
    looking = Looking()
    looking.add(SECOND, 50_000)
    assert looking.share(SECOND) == looking.share(SECOND - 10) == pytest.approx(0.05)

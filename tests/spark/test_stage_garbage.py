"""While stages run, Python looks for garbage less often; afterwards as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from intervalq.spark._paced.partition import _COLLECTED, _Garbage


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_after_the_last_stage_the_threshold_is_as_before(stages: int) -> None:
    garbage = _Garbage()
    for _ in range(stages):
        garbage.begin()
    for _ in range(stages):
        assert gc.get_threshold()[0] == _COLLECTED
        garbage.end()
    assert gc.get_threshold() == (700, 10, 10)


def test_a_threshold_that_was_set_meanwhile_stays() -> None:
    garbage = _Garbage()
    garbage.begin()
    gc.set_threshold(1_234, 5, 5)
    garbage.end()
    assert gc.get_threshold() == (1_234, 5, 5)

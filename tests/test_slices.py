"""A short scheduler time slice: it is requested once per thread, and changes nothing else of the thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from intervalq._timing import slices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")


def in_a_thread(function: Callable[[], object]) -> object:
    """The result of a function in a thread of its own, whose scheduling may be changed."""
    given: list[object] = []
    thread = threading.Thread(target=lambda: given.append(function()))
    thread.start()
    thread.join()
    return given[0]


def scheduling() -> tuple[int, int, int]:
    thread = threading.get_native_id()
    nice = os.getpriority(os.PRIO_PROCESS, thread)
    return os.sched_getscheduler(0), nice, os.sched_getparam(0).sched_priority


def test_the_policy_and_the_priority_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> bool:
        before = scheduling()
        slices.run_soon()
        return scheduling()[1:] == before[1:] and scheduling()[0] | RESET == before[0] | RESET

    assert in_a_thread(ask)
    monkeypatch.setattr(slices, "_SCHED_SETATTR", {})  # a processor that is not known
    assert in_a_thread(ask)


RESET = getattr(os, "SCHED_RESET_ON_FORK", 0)


def test_it_is_asked_for_once_and_threads_that_follow_have_the_usual_slice() -> None:
    def ask() -> tuple[bool, bool]:
        slices.run_soon()
        asked = os.sched_getscheduler(0) & RESET != 0
        return asked, in_a_thread(lambda: os.sched_getscheduler(0) & RESET == 0) is True

    assert in_a_thread(ask) == (True, True)


def test_a_policy_that_somebody_chose_is_left_alone() -> None:
    def ask() -> bool:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        slices.run_soon()
        return os.sched_getscheduler(0) == os.SCHED_BATCH

    assert in_a_thread(ask)

"""Blocking handles accept the same options as async ones, with the same names and types."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from intervalq import IntervalQueue
from intervalq._queue.keywords import JobOptions, QueueOptions, Settings, SlotOptions, TryOptions
from intervalq.tasks import Tasks
from intervalq.tasks._handle.keywords import NewOptions, QueuesLook, ScheduleOptions, TasksLook, TasksOptions


@pytest.mark.parametrize(
    ("options", "function", "left_out"),
    [
        (QueueOptions, IntervalQueue.__init__, ()),
        (JobOptions, IntervalQueue.run, ("settle",)),  # this one's type depends on the result
        (JobOptions, IntervalQueue.add, ("settle",)),
        (SlotOptions, IntervalQueue.slot, ()),
        (TryOptions, IntervalQueue.try_slot, ()),
        (Settings, IntervalQueue.configure, ()),
        (TasksOptions, Tasks.__init__, ()),
        (NewOptions, Tasks.new, ()),
        (NewOptions, Tasks.insert, ("connection",)),
        (ScheduleOptions, Tasks.schedule, ()),
        (TasksLook, Tasks.tasks, ()),
        (QueuesLook, Tasks.queues, ()),
    ],
)
def test_they_are_the_same(options: type, function: Callable[..., object], left_out: tuple[str, ...]) -> None:
    signature = inspect.signature(function)
    asked = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in left_out
    }
    given: dict[str, str] = {}
    for name, hint in options.__annotations__.items():
        given[name] = hint.__forward_arg__
    assert given == asked

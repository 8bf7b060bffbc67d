"""How a bug is planted: the real code is changed while a context is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from unittest import mock


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug."""

    what: str
    mix: str
    """The mix of faults that finds it soon."""
    seed: int
    """The first schedule of that mix that found it."""
    plant: Callable[[], Iterator[None]]


BUGS: Final[dict[str, Bug]] = {}
"""The planted bugs by name."""

Plant = Callable[[], Iterator[None]]


def bug(name: str, mix: str, seed: int) -> Callable[[Plant], Plant]:
    """Register a generator that has the bug between its start and its end."""

    def add(plant: Plant) -> Plant:
        BUGS[name] = Bug((plant.__doc__ or "").strip(), mix, seed, plant)
        return plant

    return add


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant the bug of that name while this context is open; an empty name plants none."""
    yield from BUGS[name].plant() if name else iter((None,))


def instead(owner: object, name: str, replacement: object) -> Iterator[None]:
    """Replace an attribute for a while."""
    with mock.patch.object(owner, name, replacement):
        yield

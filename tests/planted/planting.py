"""How a bug is planted: a change of the real code for as long as it is open."""

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
    """The mix that finds it soon."""
    seed: int
    """The first schedule of it that did."""
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
    """Have the bug of that name while this is open; of an empty name, none."""
    yield from BUGS[name].plant() if name else iter((None,))


def instead(owner: object, name: str, replacement: object) -> Iterator[None]:
    """Put something else in the place of an attribute for a while."""
    with mock.patch.object(owner, name, replacement):
        yield

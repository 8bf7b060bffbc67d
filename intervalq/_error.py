"""The base class of all errors; `intervalq.errors` has the others."""

from __future__ import annotations

from typing import Any


class IntervalqError(Exception):
    """The base class of all errors of this package. They can be pickled and keep their values."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[IntervalqError], args: tuple[Any, ...], values: dict[str, Any]) -> IntervalqError:
    """Rebuild a pickled error without its constructor, which takes other arguments."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error

"""A few numbers that the processes of one run share: cheap to write with each task, cheap to watch."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

_SIZE = 4096
_FLAGS = 2


class Board:
    """Whether the run is over, whether a process has failed, and how many tasks each has begun.

    Each number has one writer, except for the flags, which are only ever set.
    """

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._numbers = memoryview(self._map).cast("q")
        self._counts = self._numbers[_FLAGS:]

    @property
    def over(self) -> bool:
        """Whether the run is over: the processes must report their results, and end."""
        return self._numbers[0] != 0

    def end(self) -> None:
        """End the run."""
        self._numbers[0] = 1

    @property
    def failed(self) -> bool:
        """Whether a process has failed, and written the reason to standard error."""
        return self._numbers[1] != 0

    def fail(self) -> None:
        """Record that this process has failed."""
        self._numbers[1] = 1

    @property
    def begun(self) -> int:
        """The number of tasks that all processes have begun."""
        return sum(self._counts)

    def count(self, index: int, tasks: int) -> None:
        """Add to the number of tasks that this process has begun."""
        self._counts[index] = tasks

    def of(self, index: int) -> int:
        """The number of tasks that one process has begun."""
        return self._counts[index]

    def close(self) -> None:
        """Release the memory."""
        self._counts.release()
        self._numbers.release()
        self._map.close()


class NewBoard(Board):
    """A board in a file of its own, which is removed at the end of the context."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="intervalq-board-")  # noqa: SIM115 - see `__exit__`
        self._file.write(bytes(_SIZE))
        self._file.flush()
        self.path = self._file.name
        super().__init__(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._file.close()

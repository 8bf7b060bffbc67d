"""The output folder: unfinished passes, large answers and reports, and tables without a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from intervalq.errors import InvalidOption
from intervalq.ledger._files import ArrowFiles, Files, OwnFiles, file_system
from intervalq.spark._runtime.hadoop import files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DONE: Final = "_SUCCESS"
"""The name of the file that Spark writes when a job's output is complete."""

_CALL: Final = "call.json"
"""The name of the file that records which function and schema the published results were made with."""

_PUBLISHED: Final = "_PUBLISHED"
"""The name of the file that is written once a pass is completely in the tables."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the missing requests, as its folder describes it."""

    id: str
    """The id. Its first 16 characters are the time at which the pass began (UTC)."""
    complete: bool
    """Whether all of its rows have ended."""
    published: bool

    @property
    def day(self) -> str:
        """The day on which it began."""
        return f"{self.id[:4]}-{self.id[4:6]}-{self.id[6:8]}"


def answers_of(output: str) -> str | None:
    """The folder of answers that are too large for the ledger, as executors open it.

    None: the Arrow in their Python can't open it; then the rows of such answers fail.
    """
    try:
        files, root = file_system(output)
    except InvalidOption:
        return None
    return f"{f'file://{root}' if isinstance(files, OwnFiles) else output.rstrip('/')}/answers"


class Layout:
    """Paths for Spark, and a file system for operations that don't need Spark. `output`: see `Spec`."""

    def __init__(self, output: str, spark: SparkSession | None = None) -> None:
        """`spark`: the session whose Java has file systems, unless the output is on this machine."""
        self.files, self._root = files_of(output, spark)
        self._is_here = isinstance(self.files, OwnFiles)
        if self._is_here:
            from pyarrow import fs  # noqa: PLC0415 - an extra

            self.files = ArrowFiles(fs.LocalFileSystem())  # not only its owner may read the output
        # With a scheme: on a cluster, a bare path would belong to the default file system.
        self._spark = f"file://{self._root}" if self._is_here else output.rstrip("/")

    def answers(self) -> tuple[str, Files]:
        """The folder of answers that are too large for the ledger, and its file system, for the driver."""
        return f"{self._root}/answers", OwnFiles() if self._is_here else self.files

    def table(self, name: str) -> str:
        """The folder, for Spark, of a table: `results`, `rejects`, `log`."""
        return f"{self._spark}/{name}"

    def work(self, id_: str) -> str:
        """The folder, for Spark, where a pass is written first."""
        return f"{self._spark}/passes/pass={id_}"

    def place(self, name: str) -> str:
        """The place of a file in the output folder, for messages."""
        return f"{self._root if self._is_here else self._spark}/{name}"

    def passes(self) -> Iterator[Pass]:
        """The passes that left a folder, the oldest first."""
        for name in sorted(self.files.names(f"{self._root}/passes")):
            if name.startswith("pass="):
                path = f"{self._root}/passes/{name}"
                yield Pass(
                    name.removeprefix("pass="),
                    self.files.has(f"{path}/{_DONE}"),
                    self.files.has(f"{path}/{_PUBLISHED}"),
                )

    def has(self, table: str) -> bool:
        """Whether a table (`results`, `rejects`, `log`) in this folder has any day."""
        return any(
            name.startswith(("day=", "_delta_log")) for name in self.files.names(f"{self._root}/{table}")
        )

    def mark_published(self, id_: str) -> None:
        """Note that a pass is completely in the tables."""
        self.files.write(f"{self._root}/passes/pass={id_}/{_PUBLISHED}", b"")

    def published_call(self) -> str | None:
        """What `note_call` wrote last; None: nothing."""
        with suppress(FileNotFoundError):
            return self.files.read(f"{self._root}/{_CALL}").decode()
        return None

    def note_call(self, call: str) -> None:
        """Note which function and schema the published results were made with."""
        self.write(_CALL, call.encode())

    def remove(self, id_: str) -> None:
        """Remove the folder of a pass. If this is interrupted, the folder counts as incomplete."""
        path = f"{self._root}/passes/pass={id_}"
        self.files.remove(f"{path}/{_DONE}")
        self.files.remove_all(path)

    def write(self, name: str, content: bytes) -> str:
        """Write a file into the output folder; returns its place."""
        self.files.write(f"{self._root}/.{name}.new", content)
        self.files.replace(f"{self._root}/.{name}.new", f"{self._root}/{name}")
        return self.place(name)

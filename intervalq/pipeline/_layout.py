"""The output folder: where results, rejects, log and unfinished passes are, on disk or in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from intervalq.ledger._large import file_system

_DONE: Final = "_SUCCESS"
"""The name of the file that Spark writes when a job's output is complete."""

_CALL: Final = "call.json"
"""The name of the file that says which function and schema the published results are of."""

_PUBLISHED: Final = "_PUBLISHED"
"""The name of the file that is written when all of a pass is in the tables."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the missing requests, as its folder describes it."""

    id: str
    """Its first 16 characters say when it began (UTC)."""
    complete: bool
    """Whether all of its rows have ended."""
    published: bool

    @property
    def day(self) -> str:
        """The day on which it began."""
        return f"{self.id[:4]}-{self.id[4:6]}-{self.id[6:8]}"


class Layout:
    """Paths for Spark, and a file system for operations that don't need Spark. `output`: see `Spec`."""

    def __init__(self, output: str) -> None:
        from pyarrow import fs  # noqa: PLC0415 - an extra

        files, self._root = file_system(output)
        self._files: Any = fs.LocalFileSystem() if files is None else files
        # With a scheme: on a cluster, a bare path would belong to the default file system.
        self._spark = f"file://{self._root}" if files is None else output.rstrip("/")
        self.results = f"{self._spark}/results"
        self.rejects = f"{self._spark}/rejects"
        self.log = f"{self._spark}/log"
        self.answers = f"{self._spark}/answers"
        """The folder of answers that are too large for the ledger."""

    def work(self, id_: str) -> str:
        """The folder, for Spark, where a pass is written first."""
        return f"{self._spark}/passes/pass={id_}"

    def place(self, name: str) -> str:
        """The place of a file in the output folder, for messages."""
        return f"{self._root if self._spark.startswith('file:') else self._spark}/{name}"

    def passes(self) -> Iterator[Pass]:
        """The passes that left a folder, the oldest first."""
        from pyarrow import fs  # noqa: PLC0415

        found = self._files.get_file_info(fs.FileSelector(f"{self._root}/passes", allow_not_found=True))
        for name in sorted(info.base_name for info in found):
            if name.startswith("pass="):
                path = f"{self._root}/passes/{name}"
                yield Pass(
                    name.removeprefix("pass="),
                    self._has(f"{path}/{_DONE}"),
                    self._has(f"{path}/{_PUBLISHED}"),
                )

    def has(self, table: str) -> bool:
        """Whether a table (`results`, `rejects`, `log`) has any day."""
        from pyarrow import fs  # noqa: PLC0415

        found = self._files.get_file_info(fs.FileSelector(f"{self._root}/{table}", allow_not_found=True))
        return any(info.base_name.startswith("day=") for info in found)

    def mark_published(self, id_: str) -> None:
        """Note that all of a pass is in the tables."""
        self._write(f"passes/pass={id_}/{_PUBLISHED}", b"")

    def published_call(self) -> str | None:
        """What `note_call` wrote last; None: nothing."""
        with suppress(FileNotFoundError), self._files.open_input_stream(f"{self._root}/{_CALL}") as stream:
            return bytes(stream.read()).decode()
        return None

    def note_call(self, call: str) -> None:
        """Note by which function and schema results were made that are published now."""
        self.write(_CALL, call.encode())

    def remove(self, id_: str) -> None:
        """Remove the folder of a pass. If this is interrupted, the folder counts as incomplete."""
        path = f"{self._root}/passes/pass={id_}"
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{path}/{_DONE}")
        with suppress(FileNotFoundError):
            self._files.delete_dir(path)

    def write(self, name: str, content: bytes) -> str:
        """Write a file into the output folder; returns its place."""
        self._files.create_dir(self._root, recursive=True)
        self._write(f".{name}.new", content)
        if not self._spark.startswith("file:"):  # these file systems can't replace a file by a move
            with suppress(FileNotFoundError):
                self._files.delete_file(f"{self._root}/{name}")
        self._files.move(f"{self._root}/.{name}.new", f"{self._root}/{name}")
        return self.place(name)

    def _write(self, name: str, content: bytes) -> None:
        with self._files.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(content)

    def _has(self, path: str) -> bool:
        from pyarrow import fs  # noqa: PLC0415

        return bool(self._files.get_file_info(path).type != fs.FileType.NotFound)

"""Results of `intervalq run` as rows: JSON lines, split into pieces that Spark reads in parallel."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from intervalq.errors import InvalidOption, InvalidTask, short

_PIECE: Final = 64 << 20
"""Bytes of a piece."""

_TIMES: Final = ("due", "started", "ended")


class Piece(InputPartition):
    """The lines of a file that begin in a range of its bytes."""

    def __init__(self, path: str, begin: int, end: int, size: int) -> None:
        self.path, self.begin, self.end, self.size = path, begin, end, size


def pieces(path: str) -> Iterator[Piece]:
    """The pieces of a file, of the files in a folder, or of those that match a pattern.

    Raises:
        InvalidOption: there are no such files.
    """
    pattern = os.path.join(glob.escape(path), "*") if os.path.isdir(path) else path  # noqa: PTH112, PTH118 - text
    found = sorted(name for name in glob.glob(pattern) if os.path.isfile(name))  # noqa: PTH113, PTH207 - a pattern
    if not found:
        raise InvalidOption(f"path={short(path)} is not a file: give one that `intervalq run --output` wrote")
    for name in found:
        size = os.path.getsize(name)  # noqa: PTH202 - text
        for begin in range(0, size, _PIECE):
            yield Piece(name, begin, min(size, begin + _PIECE), size)


def results(piece: Piece) -> Iterator[tuple[Any, ...]]:
    """The rows of a piece. A last line that was cut off while it was written is ignored.

    Raises:
        InvalidTask: a line is not a result.
    """
    with open(piece.path, "rb") as file:  # noqa: PTH123 - text
        place = piece.begin
        if place:
            file.seek(place - 1)
            place += len(file.readline()) - 1  # a line that began before is the previous piece's
        while place < piece.end:
            line = file.readline()
            place += len(line)
            if not line.endswith(b"\n") and place >= piece.size:
                try:
                    row = _row(line) if line.strip() else None
                except ValueError:
                    return
            else:
                row = _checked(line, piece, place) if line.strip() else None
            if row is not None:
                yield row


def _checked(line: bytes, piece: Piece, place: int) -> tuple[Any, ...]:
    try:
        return _row(line)
    except (ValueError, RecursionError) as error:
        raise InvalidTask(
            f"{piece.path}: the line that ends at byte {place} is not a result of `intervalq run`: {error}"
        ) from error


def _row(line: bytes) -> tuple[Any, ...]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - a broken file, not a wrong type
    try:
        job, *times = (value[name] for name in ("job", *_TIMES))
        return (
            job if isinstance(job, str) else json.dumps(job, ensure_ascii=False, separators=(",", ":")),
            *(int(value["shard"]), int(value["ticket"])),
            *(datetime.fromtimestamp(float(time), UTC) for time in times),
            *(value["exit_code"], value["stdout"], value["stderr"], int(value["attempt"])),
        )
    except KeyError as error:
        raise ValueError(f"it has no {error}") from error
    except (TypeError, OverflowError, OSError) as error:
        raise ValueError(str(error)) from error

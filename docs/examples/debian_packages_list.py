"""Rows to try a pipeline on: the packages that a Debian machine knows of, or a similar list."""

from __future__ import annotations

import gzip
import io
import lzma
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

_LISTS: Final = Path("/var/lib/apt/lists")
_STATUS: Final = Path("/var/lib/dpkg/status")
_FIELDS: Final = {"Package": "name", "Version": "version", "Section": "section", "Installed-Size": "size"}


def packages(rows: int) -> tuple[list[dict[str, Any]], str]:
    """The given number of packages, in the order of the list, and its source.

    Without Debian's lists, or if they are too short, the list is made up, with sizes as unequal.
    """
    for source in [*sorted(_LISTS.glob("*_Packages*"), key=lambda path: -path.stat().st_size), _STATUS]:
        found = _read(source, rows)
        if len(found) == rows:
            return found, str(source)
    made = random.Random(1)  # noqa: S311 - no secret; the same list each time
    return [
        {
            "name": f"package-{number}",
            "version": f"{number % 7}.{number % 11}",
            "section": f"section-{min(20, int(made.expovariate(0.3)))}",
            "size": int(made.lognormvariate(6, 2)),
        }
        for number in range(rows)
    ], "a made-up list"


def _read(source: Path, rows: int) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    try:
        with _opened(source) as lines:
            for package in _packages(lines):
                found.setdefault(package["name"], package)
                if len(found) == rows:
                    break
    except (OSError, EOFError, lzma.LZMAError):
        return []
    return list(found.values())


def _packages(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    package: dict[str, Any] = {}
    for line in lines:
        if not line.strip():
            if "name" in package:
                yield package
            package = {}
        elif (name := _FIELDS.get(line.partition(":")[0])) is not None:
            value = line.partition(":")[2].strip()
            package[name] = int(value) if name == "size" and value.isdecimal() else value
    if "name" in package:
        yield package


def _opened(source: Path) -> IO[str]:
    if source.suffix == ".lz4":
        import pyarrow as pa  # noqa: PLC0415 - an extra

        return io.TextIOWrapper(pa.CompressedInputStream(pa.OSFile(str(source)), "lz4"), "utf-8")
    if source.suffix == ".gz":
        return gzip.open(source, "rt", encoding="utf-8")
    if source.suffix == ".xz":
        return lzma.open(source, "rt", encoding="utf-8")
    return source.open(encoding="utf-8")

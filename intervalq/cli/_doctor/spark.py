"""The part of `intervalq doctor` about Spark: its version, and the Java that it will use."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from intervalq._show import escaped
from intervalq.errors import JavaNotFound
from intervalq.spark._compat import OLDEST
from intervalq.spark._runtime.java import find_java

_NEEDS: Final = ("pyarrow", "pandas")
"""Packages that PySpark needs to move rows, but doesn't install."""


def about_spark() -> dict[str, str] | None:
    """A level and a sentence, as for stores, or None if PySpark isn't installed. This changes nothing."""
    spark = _version("pyspark")
    if spark is None:
        return None
    remedy = "pip install 'intervalq[spark]'"
    if tuple(int(part) for part in spark.split(".")[:2] if part.isdecimal()) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return _warning(f"pyspark {spark} is older than {oldest}, so intervalq.spark can't use it: {remedy}")
    missing = [name for name in _NEEDS if _version(name) is None]
    if missing:
        return _warning(f"pyspark {spark} does not work without {' and '.join(missing)}: {remedy}")
    try:
        java = find_java()
    except JavaNotFound as error:
        return _warning(f"pyspark {spark} can't start: {error}")
    return {"level": "ok", "what": f"pyspark {spark}, with Java {java.version} of {java.source}: {java.home}"}


def show_spark(advice: dict[str, str] | None) -> list[str]:
    """The lines to print; none without PySpark."""
    return [] if advice is None else ["spark", f"{advice['level']:>9}  {escaped(advice['what'])}"]


def _warning(what: str) -> dict[str, str]:
    return {"level": "warning", "what": what}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

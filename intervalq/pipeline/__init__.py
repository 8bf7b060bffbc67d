"""Pipelines: a file describes what to call for which rows, at which pace, until each row has a result."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from intervalq.errors import MissingExtra
from intervalq.pipeline._spec import Spec, read_spec
from intervalq.pipeline._watch import Look, Outcome, Published, Watch

if TYPE_CHECKING:
    from intervalq.pipeline._run import audit, run

__all__ = ["Look", "Outcome", "Published", "Spec", "Watch", "audit", "read_spec", "run"]

_NEED_SPARK: Final = ("audit", "run")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Import what needs Spark only when it is used, so that a spec can be checked without Spark."""
    if name not in _NEED_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}._run"), name)
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] in {"pyspark", "pyarrow", "pandas"}:
            raise MissingExtra("a pipeline", "spark") from missing
        raise

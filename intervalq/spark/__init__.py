"""intervalq on Spark: one pace over all executors, with effectively-once calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from intervalq._lazy import lazy_names

if TYPE_CHECKING:
    from intervalq.spark._audit.audit import audit
    from intervalq.spark._audit.result import Audit
    from intervalq.spark._paced.context import CallContext
    from intervalq.spark._paced.paced import paced
    from intervalq.spark._paced.plan import Plan, plan
    from intervalq.spark._paced.progress import Progress, cancel, progress, remaining
    from intervalq.spark._runtime.java import Java, java_home
    from intervalq.spark._runtime.session import session
    from intervalq.spark._source.datasource import register

__all__ = [
    "Audit",
    "CallContext",
    "Java",
    "Plan",
    "Progress",
    "audit",
    "cancel",
    "java_home",
    "paced",
    "plan",
    "progress",
    "register",
    "remaining",
    "session",
]

_WHERE: Final = {
    "Audit": "_audit.result",
    "CallContext": "_paced.context",
    "Java": "_runtime.java",
    "Plan": "_paced.plan",
    "Progress": "_paced.progress",
    "audit": "_audit.audit",
    "cancel": "_paced.progress",
    "java_home": "_runtime.java",
    "paced": "_paced.paced",
    "plan": "_paced.plan",
    "progress": "_paced.progress",
    "register": "_source.datasource",
    "remaining": "_paced.progress",
    "session": "_runtime.session",
}

# Imported when they are used: audits needn't wait for the data source, nor `doctor` for Spark.
__getattr__ = lazy_names(
    __name__, _WHERE, needs=("pyspark", "pyarrow", "pandas"), what="intervalq on Spark", extra="spark"
)

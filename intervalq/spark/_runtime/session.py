"""A local Spark session with good defaults: it finds Java, logs little, and is not reachable from outside."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from intervalq.errors import InvalidOption, short
from intervalq.spark._runtime.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Settings of a session on any master or server."""

_OURS: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of a local Spark that this module starts."""


def session(name: str = "intervalq", /, **conf: object) -> SparkSession:
    """Return the active session of Spark, or start a local one with settings that suit paced calls.

    Without an active session, and unless another place is configured, this starts `local[*]` with the Java
    that `java_home()` finds, logs only errors, has no web page, binds everything to 127.0.0.1, converts by
    Arrow, and uses UTC as the session's time zone (so that days in logs are the same everywhere). Its Python
    workers run this interpreter unless PYSPARK_PYTHON says otherwise. JAVA_HOME and PYSPARK_PYTHON are set in
    `os.environ` for PySpark.

    Another place can be configured by `conf`, by SPARK_REMOTE (`sc://...` needs no local Java), by
    PYSPARK_SUBMIT_ARGS or MASTER, by `spark-submit`, or by SPARK_HOME and SPARK_CONF_DIR. There, only time
    zone and Arrow are set, unless they are configured, and everything else is left as it is.

    Args:
        name: the application's name; it has no effect on an active session.
        conf: Spark's settings by their full names: `session(**{"spark.driver.memory": "4g"})`, and `master`
            and `remote` for short. They override all others; values may be True and False, and None keeps
            Spark's own. On an active session, only settings that Spark allows to change are set.

    Raises `InvalidOption` for a name that isn't a setting of Spark, `JavaNotFound`, and Spark's
    `AnalysisException` for a setting that can't be changed in an active session.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - takes half a second, for all of these
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.utils import is_remote  # noqa: PLC0415

    given = _checked(conf)
    try:
        active = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        pass
    else:
        _set_after(active, given)
        return active
    remote = given.get("spark.remote") or (
        "" if "spark.master" in given else os.environ.get("SPARK_REMOTE", "")
    )
    if not remote.startswith("sc://") and not os.environ.get("PYSPARK_GATEWAY_PORT"):
        java_home()
    here = not remote and _is_here(given)
    if here:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.master": "local[*]", **_ANYWHERE, **_OURS, **given} if here else given
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        if value is not None:
            builder = builder.config(key, value)
    started = builder.getOrCreate()
    if not here:
        known = dict(given) if is_remote() else {**dict(started.sparkContext.getConf().getAll()), **given}
        _set_after(started, {key: value for key, value in _ANYWHERE.items() if key not in known})
    return started


def _checked(conf: Mapping[str, object]) -> dict[str, str | None]:
    """The settings as text, as Spark expects them; None is kept, and means: don't use our default either."""
    given: dict[str, str | None] = {}
    for key, value in conf.items():
        full = f"spark.{key}" if key in {"master", "remote"} else key
        if not full.startswith("spark."):
            raise InvalidOption(
                f"{short(key)} is not a setting of Spark: these begin with 'spark.', as in its manual"
            )
        given[full] = None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return given


def _set_after(session: SparkSession, conf: Mapping[str, str | None]) -> None:
    for key, value in conf.items():
        if value is not None:
            session.conf.set(key, value)


def _is_here(given: Mapping[str, str | None]) -> bool:
    """Whether no other place is configured, and Spark's Java is not running yet."""
    if master := given.get("spark.master"):
        return master.startswith("local")
    named = ("PYSPARK_GATEWAY_PORT", "MASTER", "SPARK_HOME", "SPARK_CONF_DIR")
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return not any(os.environ.get(name) for name in named) and not any(
        word.startswith("--master") or "spark.master=" in word for word in words
    )

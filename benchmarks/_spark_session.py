"""Sessions for the Spark benchmarks: small, quiet, and with the Python that runs this."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def session(master: str, **conf: str) -> Iterator[Any]:
    """A session on a master such as `local[4]` or `local-cluster[2,2,600]`; `_` in a setting's name is a dot."""
    from intervalq.spark import java_home

    os.environ["PYSPARK_PYTHON"] = sys.executable
    java_home()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("intervalq benchmark")
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.locality.wait": "0s",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        **{name.replace("_", "."): value for name, value in conf.items()},
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()

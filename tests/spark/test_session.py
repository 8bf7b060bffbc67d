"""The usual session: what it reuses, what it refuses, and when it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from intervalq.errors import InvalidOption
from intervalq.spark._runtime.session import _is_here, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize("name", ["shuffle_partitions", "Spark.x", "spark"])
def test_names_that_are_not_settings(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"is not a setting of Spark"):
        session(**{name: 1})


def test_an_active_session_is_reused(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    before = spark.conf.get(KEY)
    assert session("another name") is spark
    try:
        assert session(**{KEY: 3, "spark.sql.ansi.enabled": False, "spark.driver.memory": None}) is spark
        assert (spark.conf.get(KEY), spark.conf.get("spark.sql.ansi.enabled")) == ("3", "false")
    finally:
        spark.conf.set(KEY, before or "2")
        spark.conf.unset("spark.sql.ansi.enabled")
    assert spark.conf.get("spark.app.name") == "intervalq tests"
    with pytest.raises(AnalysisException, match=r"spark\.driver\.memory"):
        session(**{"spark.driver.memory": "2g"})


@pytest.mark.parametrize(
    ("variable", "value", "here"),
    [
        ("PYSPARK_GATEWAY_PORT", "1", False),
        ("MASTER", "spark://x", False),
        ("SPARK_HOME", "/opt/spark", False),
        ("SPARK_CONF_DIR", "/etc/spark", False),
        ("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell", False),
        ("PYSPARK_SUBMIT_ARGS", "--conf spark.master=k8s://x pyspark-shell", False),
        ("PYSPARK_SUBMIT_ARGS", "--conf spark.driver.memory=1g pyspark-shell", True),
        ("MASTER", "", True),
    ],
)
def test_who_named_another_place(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, here: bool
) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "MASTER", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert _is_here({}) is here
    assert _is_here({"spark.master": "local[3]"}) is True
    assert _is_here({"spark.master": "spark://x"}) is False

"""Lets Spark find the data source `intervalq`: it looks into top-level modules `pyspark_*`."""

from intervalq.spark._source.datasource import IntervalqSource as DefaultSource

__all__ = ["DefaultSource"]

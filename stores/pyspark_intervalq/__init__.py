"""Lets Spark find the data source `intervalq` by itself: it looks into top-level modules named `pyspark_*`."""

"""Tasks as a Spark data source. Spark has data sources in Python since 4.0."""

from intervalq.spark._compat import require

require((4, 0), "the data source intervalq")

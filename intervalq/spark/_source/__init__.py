"""Tasks as a Spark data source."""

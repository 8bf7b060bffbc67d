"""The published tables: folders of Parquet or Delta in the output, or tables of a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from intervalq.errors import InvalidOption
from intervalq.spark._compat import first_line
from intervalq.spark._formats import lacking, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from intervalq.pipeline._layout import Layout
    from intervalq.pipeline._spec import Spec


class Tables:
    """`results`, `rejects` and `log`, each partitioned by the day and the pass of its rows."""

    def __init__(self, spark: SparkSession, spec: Spec, layout: Layout) -> None:
        self._spark = spark
        self._form = spec.format
        self._schema = spec.tables
        self._layout = layout
        self._where = f"{spec.file.name}: [pipeline]"

    def check(self) -> None:
        """Find out, before anything is called, whether the session can keep such tables.

        Raises:
            InvalidOption: it lacks something; the message names it.
        """
        if self._form == "parquet":
            return
        if self._schema is not None:
            self._check_schema(self._schema)
        where = [] if self._schema is not None else [self._place("results")]
        try:
            _ = self._spark.read.format(self._form).load(*where).columns
        except Exception as error:  # there may be nothing yet
            if why := lacking(error, self._form):
                raise InvalidOption(
                    f"{self._where} format = {self._form!r}: {first_line(error)}{why}"
                ) from error

    def _check_schema(self, schema: str) -> None:
        try:
            is_there = self._spark.catalog.databaseExists(schema)
        except Exception as error:
            raise InvalidOption(
                f"{self._where} tables = {schema!r}: {first_line(error)}{lacking(error, self._form)}"
            ) from error
        if not is_there:
            raise InvalidOption(
                f"{self._where} tables = {schema!r}: there is no such schema: CREATE SCHEMA {schema}, or "
                "correct the name (its catalog is a setting, spark.sql.catalog.NAME)"
            )

    def has(self, name: str) -> bool:
        """Whether something was published in a table."""
        if self._schema is None:
            return self._layout.has(name)
        return self._spark.catalog.tableExists(self._place(name))

    def read(self, name: str) -> DataFrame:
        """The rows of a table."""
        form = self._form if self._schema is None else "table"
        return read(self._spark.read, self._place(name), form)

    def replace(self, name: str, rows: DataFrame, id_: str) -> None:
        """Replace the rows that a table has of a pass by these."""
        place = self._place(name)
        if self._schema is not None:
            if not self.has(name):
                new = rows.limit(0).writeTo(place).using(self._form)
                new.partitionedBy(F.col("day"), F.col("pass")).create()
            rows.writeTo(place).overwrite(F.col("pass") == id_)
            return
        writer = rows.write.format(self._form).mode("overwrite").partitionBy("day", "pass")
        if self._form == "delta":
            writer.option("replaceWhere", f"pass = '{id_}'").save(place)
        else:
            writer.option("partitionOverwriteMode", "dynamic").save(place)

    def _place(self, name: str) -> str:
        return self._layout.table(name) if self._schema is None else f"{self._schema}.{name}"

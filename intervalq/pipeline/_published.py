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
        try:
            if self._schema is None:
                _ = read(self._spark.read, self._place("results"), self._form).columns
                return
            if self._spark.catalog.databaseExists(self._schema):
                return
        except Exception as error:
            if why := lacking(error, self._form):
                raise InvalidOption(
                    f"{self._where} format = {self._form!r}: {first_line(error)}{why}"
                ) from error
            if self._schema is None:
                return  # there is no table yet
            raise InvalidOption(f"{self._where} tables = {self._schema!r}: {first_line(error)}") from error
        raise InvalidOption(
            f"{self._where} tables = {self._schema!r}: there is no such schema: CREATE SCHEMA "
            f"{self._schema}, or correct the name (its catalog is a setting, spark.sql.catalog.NAME)"
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
        """Put the rows of a pass in the place of those that the table has of it."""
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

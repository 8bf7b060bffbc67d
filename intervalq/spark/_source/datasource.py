"""The data source `intervalq`: durable tasks, ledgers and logs where Spark reads and writes tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from intervalq.errors import InvalidOption
from intervalq.spark._source.options import TABLES, read_options, stream_options, write_options
from intervalq.spark._source.read import SCHEMAS, TableReader
from intervalq.spark._source.stream import TaskStreamReader
from intervalq.spark._source.write import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class IntervalqSource(DataSource):
    """Tasks of `intervalq.tasks` written and read by Spark, and ledgers and logs read.

    Writing, `df.write.format("intervalq")....mode("append").save()` or `df.writeStream`: each row becomes a
    task, exactly once, whatever of Spark fails and is done again. Nothing is inserted before all is written,
    and then all of it at once; meanwhile (4 s for 100,000 rows) nobody else can change a SQLite file.
    Options:

    - `store`: as for `Tasks`; a SQLite file on one machine, `postgresql://` on a cluster. Default: the
      environment's `INTERVALQ_STORE` on the driver, else the SQLite file that `Tasks()` uses.
    - `queue`: where the tasks go; without it the column `queue` says it.
    - `key`: a column that identifies a row in its write: ids of tasks are made of it; null or the same key
      twice is an error, and nothing is inserted. Default: the row's place in its partition.
    - `value`: a column with the value, JSON text or anything else. Default: all columns, as an object in
      which timestamps are ISO texts (UTC), decimals texts, binary values base64, intervals seconds.
    - `exclusive_key`: a column whose tasks run one after the other, where it isn't null.
    - `run`: a name for a batch write; under the same name nothing is inserted a second time, and another
      number of rows is an error. Default: each `save` inserts.
    - `max_bytes`: how large a value may be, as JSON. Default: 262144.

    Reading, `spark.read.format("intervalq")`, with `table`: `tasks` (default; of `queue`, or of all queues
    but those named `intervalq.*`), `queues`, `ledger` (with `ledger`), `log` (with `path`: a file or files
    that `intervalq run --output` wrote). Plain tasks of Postgres (`Tasks.put`) are counted by `queues`, and
    are no rows of `tasks`. A table is read while it changes: it is no snapshot of one moment.

    A stream, `spark.readStream.format("intervalq")` with `queue` and `stream`: claims tasks, up to
    `max_tasks` (10,000) a batch, and keeps them in the queue `intervalq.stream.NAME` until the checkpoint has
    them: those of the last batch until there is another one. A query that starts again reads the same tasks
    in a batch that had not ended. Each query needs a `stream` of its own.

    Raises:
        InvalidOption, InvalidName, UnknownStore, MissingExtra: an option can't be used. Spark shows these and
            all others in errors of its own.
    """

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "intervalq"

    def schema(self) -> str:
        """The columns of the table; a stream has those of `tasks`."""
        return SCHEMAS[read_options(self.options).table]

    def reader(self, schema: StructType) -> TableReader:
        """For `spark.read`."""
        options = read_options(self.options)
        _check(schema, options.table)
        return TableReader(options)

    def streamReader(self, schema: StructType) -> TaskStreamReader:  # noqa: N802 - as Spark calls it
        """For `spark.readStream`."""
        _check(schema, "tasks")
        return TaskStreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`."""
        _refuse(overwrite)
        return BatchWriter(write_options(self.options, schema.names, streams=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - as Spark calls it
        """For `df.writeStream`."""
        _refuse(overwrite)
        return StreamWriter(write_options(self.options, schema.names, streams=True))


def _check(schema: StructType, table: str) -> None:
    names = [column.split()[0] for column in SCHEMAS[table].split(", ")]
    if schema.names != names:
        raise InvalidOption(f"table {table} has the columns {', '.join(names)}: leave .schema(...) out")


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption(
            'tasks can only be added: use .mode("append"), or outputMode("append") for a stream'
        )


def register(spark: SparkSession) -> None:
    """Make the data source `intervalq` known to a session.

    Spark finds it by itself where intervalq is installed when the session starts; this is for sessions that
    look nowhere, and those of Spark Connect whose server has no intervalq.
    """
    spark.dataSource.register(IntervalqSource)


__all__ = ["TABLES", "IntervalqSource", "register"]

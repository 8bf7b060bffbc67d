"""The Spark data source `intervalq`: reads and writes durable tasks, and reads ledgers and logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource

from intervalq.errors import InvalidOption
from intervalq.spark._compat import condition, require
from intervalq.spark._source.options import TABLES, read_options, stream_options, write_options
from intervalq.spark._source.read import SCHEMAS, TableReader
from intervalq.spark._source.stream import TaskStreamReader
from intervalq.spark._source.write import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class IntervalqSource(DataSource):
    """Writes and reads tasks of `intervalq.tasks` with Spark, and reads ledgers and logs.

    Writing, with `df.write.format("intervalq")....mode("append").save()` or `df.writeStream`: each row
    becomes a task exactly once, whatever part of Spark fails and is repeated. Nothing is inserted before
    everything is staged, and then all of it at once; meanwhile (4 s for 100,000 rows) nobody else can change
    a SQLite file. Options:

    - `store`: as for `Tasks`; a SQLite file on one machine, `postgresql://` on a cluster. Default: the
      environment variable `INTERVALQ_STORE` on the driver, else the SQLite file that `Tasks()` uses.
    - `queue`: the queue of the tasks; without it, the column `queue` has it.
    - `key`: a column that identifies a row within the write, from which ids of tasks are derived. If it is
      null or occurs twice, the write fails, and nothing is inserted. Default: the row's place in its
      partition.
    - `value`: a column with the value, JSON text or any other type. Default: all columns, as an object in
      which timestamps are ISO texts (UTC), decimals texts, binary values base64, intervals seconds.
    - `exclusive_key`: a column; tasks with the same value run one after the other, unless it is null.
    - `run`: a name for a batch write: nothing is inserted a second time under the same name, and a different
      number of rows is an error. Default: each `save` inserts.
    - `max_bytes`: the largest size of a value, as JSON. Default: 262144.

    Reading, with `spark.read.format("intervalq")` and `table`: `tasks` (default; of `queue`, or of all queues
    except those named `intervalq.*`), `queues`, `ledger` (with `ledger`), `log` (with `path`: a file or files
    that `intervalq run --output` wrote). Plain tasks of Postgres (`Tasks.put`) are counted in `queues`, but
    are not rows of `tasks`. A table is read while it changes, so it is not a snapshot.

    Streaming, with `spark.readStream.format("intervalq")`, `queue` and `stream`: claims tasks, up to
    `max_tasks` (10,000) per batch, and keeps them in the queue `intervalq.stream.NAME` until the checkpoint
    has them, which is known for a batch when the next one begins. A restarted query reads the same tasks
    again in a batch that had not ended. Each query needs a `stream` of its own.

    Raises:
        InvalidOption, InvalidName, UnknownStore, MissingExtra: an option can't be used. Spark wraps these and
            all other errors in its own.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
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
        require((4, 1), "writing a stream to the data source intervalq")
        _refuse(overwrite)
        return StreamWriter(write_options(self.options, schema.names, streams=True))


def _check(schema: StructType, table: str) -> None:
    names = [column.split()[0] for column in SCHEMAS[table].split(", ")]
    if schema.names != names:
        raise InvalidOption(f"table {table} has the columns {', '.join(names)}: omit .schema(...)")


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption(
            'tasks can only be added: use .mode("append"), or outputMode("append") for a stream'
        )


def register(spark: SparkSession) -> None:
    """Register the data source `intervalq` with a session.

    Spark finds it by itself if intervalq is installed when the session starts; this is for sessions that
    don't search for data sources, and for Spark Connect servers without intervalq.
    """
    try:
        spark.dataSource.register(IntervalqSource)
    except AnalysisException as error:  # Spark 4.0, if it has found it by itself
        if condition(error) != "DATA_SOURCE_ALREADY_EXISTS":
            raise


__all__ = ["TABLES", "IntervalqSource", "register"]

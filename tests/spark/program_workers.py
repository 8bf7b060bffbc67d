"""A driver that asks every Python worker for its process. Arguments: number of tasks, `stay` to be killed."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from intervalq.spark._runtime.session import session


def who(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    store = os.environ.get("INTERVALQ_STORE")
    yield pa.RecordBatch.from_pydict(
        {
            "pid": pa.array([os.getpid()], pa.int64()),
            "rows": pa.array([rows], pa.int64()),
            "store": pa.array([store], pa.string()),
        }
    )


def main(tasks: int, *, stay: bool) -> None:
    spark = session("workers")
    frame = spark.range(10 * tasks, numPartitions=tasks)
    rows = frame.mapInArrow(who, "pid long, rows long, store string").collect()
    reported = {key: spark.conf.get(key) for key in ("spark.app.name", "spark.sql.session.timeZone")}
    print(json.dumps({"workers": [row.asDict() for row in rows], **reported}), flush=True)
    if stay:
        threading.Event().wait()
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), stay="stay" in sys.argv)

"""A client of Spark Connect, given the API's address, a store, and a part of names. Prints JSON."""

from __future__ import annotations

import json
import sys

from intervalq import IntervalQueue
from intervalq.spark import paced, plan, progress
from spark.program_calls import caller


def main(api: str, store: str, tag: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    session = SparkSession.builder.getOrCreate()
    name = f"connect-{tag}"
    queue = IntervalQueue(name, interval=0.01, store=store)
    frame = session.range(30, numPartitions=2)
    rows = frame.transform(paced(caller(api, name), "answer string", queue=queue, key="id", run=name)).select(
        "answer", F.col("_iq.ticket")
    )
    reported = plan(frame, queue, latency=0.1)
    print(
        json.dumps(
            {
                "answers": sorted(row.answer for row in rows.collect()),
                "tickets": sorted(row.ticket for row in rows.collect()),
                "plan": [reported.rows, reported.partitions, reported.tasks_needed],
                "done": progress(queue, name).done,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How many rows a second does the audit of a log judge, in how much memory, and does the cost grow linearly?

    python benchmarks/audit.py --rows 100e6

Spark itself writes logs of an eighth, a quarter, a half and all of the rows to a temporary folder, with some faults
planted: four queues at 100 starts a second, 16 shards each on 8 hosts, and every shard's rows in a file of their
own, so that nothing is in order. Each log is audited, and exactly the planted faults must be found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

QUEUES, SHARDS, HOSTS = 4, 16, 8
PARTS = 8
"""Parts of a queue's time; each fault is planted once in every part."""
INTERVAL = 0.01
FIRST = 1_700_000_000.0
FAULTS = ("gap_short", "start_late", "slot_twice", "key_twice", "ended_before_start", "tickets_unused")


def session(memory: str, cores: int) -> SparkSession:
    """A local session whose temporary files are on disk, in the system's folder for them."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # which has what its workers import
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("intervalq audit")
        .config("spark.driver.memory", memory)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2 * cores)
        .config("spark.local.dir", tempfile.gettempdir())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def log(spark: SparkSession, rows: int) -> tuple[DataFrame, int]:
    """A log of about this many rows, and how often each fault is in it."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    each = rows // (QUEUES * SHARDS * PARTS) * PARTS  # rows of a shard
    part = each // PARTS
    df = spark.range(0, each * QUEUES * SHARDS, 1, QUEUES * SHARDS)
    group, place = F.floor(F.col("id") / each), F.col("id") % each
    df = df.select(
        "id", (group % QUEUES).alias("q"), F.floor(group / QUEUES).alias("s"), place.alias("place")
    )
    df = df.withColumns(
        {
            "ticket": F.col("place") * SHARDS + F.col("s") + 1,
            # Up to 0.8 ms late: under a tenth of the interval.
            "late": F.pmod(F.xxhash64("id"), F.lit(800)) / 1e6,
        }
    )

    def planted(kind: str, shard: int = 3) -> Column:
        at = part // 10 * (FAULTS.index(kind) + 1)
        return (F.col("place") % part == at) & (F.col("s") == shard)

    # Two neighbours, each in its tolerance, that came too close; and a late one, whose successor gives way.
    late = (
        F.when(planted("gap_short", 2), 0.0009)
        .when(planted("gap_short"), -0.0009)
        .when(planted("start_late"), 0.0015)
        .when(planted("start_late", 4), 0.0008)
        .otherwise(F.col("late"))
    )
    due = FIRST + F.col("ticket") * INTERVAL
    df = df.where(~planted("tickets_unused")).select(
        F.concat(F.lit("queue-"), F.col("q")).alias("queue"),
        F.concat(F.lit("key-"), F.when(planted("key_twice"), F.col("id") - 1).otherwise(F.col("id"))).alias(
            "key"
        ),
        F.col("ticket").cast("long").alias("ticket"),
        F.round(due, 6).alias("due"),
        F.round(due + late, 6).alias("started"),
        F.round(due + late + F.when(planted("ended_before_start"), -1.0).otherwise(0.2), 6).alias("ended"),
        F.concat(F.lit("host-"), F.col("s") % HOSTS).alias("host"),
        F.concat(F.lit("shard-"), F.col("s")).alias("shard"),
        F.lit(1).alias("attempt"),
        F.lit("ok").alias("status"),
        F.lit(False).alias("refused"),
        F.lit(False).alias("replayed"),
        F.explode(
            F.when(planted("slot_twice"), F.array(F.lit(""), F.lit("-again"))).otherwise(F.array(F.lit("")))
        ).alias("again"),
    )
    return df.withColumn("key", F.concat("key", "again")).drop("again"), PARTS * QUEUES


def measure(spark: SparkSession, rows: int, folder: Path) -> dict[str, Any]:
    """Write a log, audit it, and compare what was found."""
    from intervalq.spark._audit.audit import audit  # noqa: PLC0415 - needs the extra

    df, times = log(spark, rows)
    path = folder / f"log-{rows}"
    began = time.perf_counter()
    df.write.parquet(str(path))
    wrote = time.perf_counter()
    found = audit(spark, str(path), interval=INTERVAL)
    ended = time.perf_counter()
    size = sum(file.stat().st_size for file in path.rglob("*.parquet"))
    shutil.rmtree(path)
    counts = {name: value.count for name, value in found.violations.items()}
    counts["tickets_unused"] = found.notes["tickets_unused"].count
    wanted = dict.fromkeys(FAULTS, times) | {"gap_short": 2 * times}  # a slot used twice leaves a gap of zero
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001 - there is no public way to it
    return {
        "rows": found.rows,
        "megabytes": size / 1e6,
        "write_s": wrote - began,
        "audit_s": ended - wrote,
        "rows_per_s": found.rows / (ended - wrote),
        "peak_rss_mb": peak(pid),
        "as_planted": counts == wanted,
        "found": counts,
        "planted": wanted,
    }


def peak(pid: int) -> float | None:
    """The maximum resident memory of a process so far, in MB; None: the system doesn't report it."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a row for each size, and return 1 if the findings aren't the planted faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=100e6, help="rows of the largest log")
    parser.add_argument(
        "--sizes", type=int, default=4, help="how many logs, each of twice the rows of the one before"
    )
    parser.add_argument("--memory", default="4g", help="memory of Spark's driver, which does the work here")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args(arguments)
    spark = session(args.memory, args.cores)
    rows: list[dict[str, Any]] = []
    print(
        "|       rows |     MB | write s | audit s | rows/s | us/row, of the first | JVM peak MB | as planted |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory(prefix="intervalq-audit-") as folder:
        measure(
            spark, 200_000, Path(folder)
        )  # what is compiled and started the first time is not part of the cost of a row
        for size in reversed(range(args.sizes)):
            row = measure(spark, int(args.rows / 2**size), Path(folder))
            rows.append(row)
            ratio = rows[0]["rows_per_s"] / row["rows_per_s"]
            print(
                f"| {row['rows']:,} | {row['megabytes']:,.0f} | {row['write_s']:.1f} | {row['audit_s']:.1f} "
                f"| {row['rows_per_s']:,.0f} | {ratio:.2f} | {row['peak_rss_mb'] or 0:,.0f} | {row['as_planted']} |",
                flush=True,
            )
            if not row["as_planted"]:
                print(f"found {row['found']}, planted {row['planted']}", file=sys.stderr)
    spark.stop()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["as_planted"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

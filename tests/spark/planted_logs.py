"""Logs of queues, clean or with one fault each: rows of Python values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from intervalq.spark._audit.result import Audit

Row = dict[str, Any]

DDL = (
    "queue string, day date, key string, ticket bigint, due double, started double, ended double, "
    "host string, shard string, attempt int, status string, refused boolean, retry_after double, "
    "replayed boolean, error string"
)
INTERVAL = 0.05
PIECE = 100 * INTERVAL
"""The period for which a clock is judged, in seconds: FIRST is at the beginning of one."""
FIRST = 1_700_000_000.0  # 22:13:20
NOW = FIRST + 100_000
COUNT = 300
MAX_RUNNING = 2
GRACE = 2 * INTERVAL


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    """Rows as a DataFrame."""
    names = [field.split()[0] for field in DDL.split(", ")]
    values = [tuple(row[name] for name in names) for row in rows]
    return spark.createDataFrame(values, DDL, verifySchema=False)


def start(queue: str, number: int) -> Row:
    """A clean log of three shards on two hosts, up to 1.7 ms late; one host's clock is 3 s ahead."""
    due = FIRST + number * INTERVAL
    second = number % 3 == 1
    started = due + 0.0005 + number % 7 * 0.0002 + 3.0 * second
    return {
        "queue": queue,
        "day": datetime.fromtimestamp(due, UTC).date(),
        "key": f"{queue}-{number}",
        "ticket": number + 1,
        "due": due,
        "started": started,
        "ended": started + 0.4 * INTERVAL,
        "host": f"{queue}-{'fast' if second else 'right'}",
        "shard": f"shard{number % 3}",
        "attempt": 1,
        "status": "ok",
        "refused": False,
        "retry_after": None,
        "replayed": False,
        "error": None,
    }


USUAL = {"tickets_unused", "call_refused", "call_failed", "call_retried"}
"""Notes on every clean log."""


def clean(queue: str) -> list[Row]:
    """A log without violations, but with a retry, a row of the ledger, a refusal and a pause after it."""
    rows = [start(queue, number) for number in range(COUNT)]
    rows[80] |= {"status": "failed", "error": "reset"}
    rows[85] |= {"key": rows[80]["key"], "attempt": 2}
    rows[90] |= {"refused": True, "retry_after": 5 * INTERVAL, "status": "failed"}
    ledger = dict.fromkeys(rows[0]) | {"queue": queue, "key": rows[3]["key"], "replayed": True}
    return [*rows[:91], *rows[97:], ledger]  # rows up to 90 stay at their index


# --- one function a fault: it changes the rows of a clean log -------------------------------------------


def _move(row: Row, seconds: float) -> None:
    row["started"] += seconds
    row["ended"] += seconds


def _set(index: int, **values: Any) -> Callable[[list[Row]], None]:
    return lambda rows: rows[index].update(values)


def _gap_short(rows: list[Row]) -> None:
    _move(rows[20], 0.0030)  # each is within its tolerance; two in a row may not be
    _move(rows[21], -0.0045)


def _crowded(rows: list[Row]) -> None:
    """A rate of 1.08, in which no single gap is short."""
    for row in rows[30:-1]:
        earlier = 0.075 * INTERVAL * min(rows.index(row) - 29, 40)
        row["due"] -= earlier
        _move(row, -earlier)


def _order_inverted(rows: list[Row]) -> None:
    _move(rows[20], 2 * INTERVAL)
    del rows[22]


def _start_early(rows: list[Row]) -> None:
    _move(rows[20], -0.2 * INTERVAL)
    del rows[19]


def _start_late(rows: list[Row]) -> None:
    _move(rows[20], 0.2 * INTERVAL)
    del rows[21]


def _ended_before_start(rows: list[Row]) -> None:
    rows[20]["ended"] = rows[20]["started"] - 1


def _day_wrong(rows: list[Row]) -> None:
    rows[20]["day"] += timedelta(days=1)


def _slot_twice(rows: list[Row]) -> None:
    rows.append(rows[20] | {"key": "another"})


def _slot_shared(rows: list[Row]) -> None:
    rows[21] |= {name: rows[20][name] for name in ("due", "started", "ended", "host")}


def _ticket_twice(rows: list[Row]) -> None:
    rows[21]["ticket"] = rows[20]["ticket"]


def _slots_close(rows: list[Row]) -> None:
    rows[20]["due"] += 0.06 * INTERVAL
    rows[21]["due"] -= 0.06 * INTERVAL


def _slot_order(rows: list[Row]) -> None:
    rows[20]["ticket"], rows[21]["ticket"] = rows[21]["ticket"], rows[20]["ticket"]


def _retry_same_slot(rows: list[Row]) -> None:
    rows.append(rows[20] | {"attempt": 2})


def _key_twice(rows: list[Row]) -> None:
    rows[21]["key"] = rows[20]["key"]


def _attempt_order(rows: list[Row]) -> None:
    rows[20] |= {"key": rows[25]["key"], "attempt": 2}


def _attempt_overlap(rows: list[Row]) -> None:
    """The second attempt at row 80's key begins while the first one runs."""
    rows[80]["ended"] = rows[85]["started"] + INTERVAL


def _cool_down_broken(rows: list[Row]) -> None:
    rows[60] |= {"refused": True, "retry_after": 5 * INTERVAL}


def _over_max_running(rows: list[Row]) -> None:
    for index in (20, 22):
        rows[index]["ended"] += 3.5 * INTERVAL


def _tickets_unused(rows: list[Row]) -> None:
    del rows[20:25]


def _queue_restarted(rows: list[Row]) -> None:
    for row in rows[200:-1]:
        row["due"] += 70
        _move(row, 70)
        row["ticket"] -= 200


def _replay_unknown(rows: list[Row]) -> None:
    rows[-1]["key"] = "never called"


def _clock_jumped(rows: list[Row]) -> None:
    for row in rows[:-1]:
        if row["shard"] != "shard1" and FIRST + PIECE <= row["due"] < FIRST + 2 * PIECE:
            _move(row, 2)


def _shard_starved(rows: list[Row]) -> None:
    for row in rows[10:]:
        row["shard"] = "shard0"


FAULTS: dict[str, tuple[Callable[[list[Row]], Any], int]] = {
    "queue_missing": (_set(20, queue=None), 1),
    "key_missing": (_set(20, key=None), 1),
    "ticket_invalid": (_set(20, ticket=0), 1),
    "slot_missing": (_set(20, due=None), 1),
    "start_missing": (_set(20, started=None, ended=None), 1),
    "end_missing": (_set(20, ended=None), 1),
    "ended_before_start": (_ended_before_start, 1),
    "time_absurd": (_set(20, ended=4e12), 1),
    "day_wrong": (_day_wrong, 1),
    "start_early": (_start_early, 1),
    "start_late": (_start_late, 1),
    "gap_short": (_gap_short, 1),
    "crowded": (_crowded, 29),
    "order_inverted": (_order_inverted, 1),
    "slot_twice": (_slot_twice, 1),
    "slot_shared": (_slot_shared, 1),
    "ticket_twice": (_ticket_twice, 1),
    "slots_close": (_slots_close, 1),
    "slot_order": (_slot_order, 1),
    "retry_same_slot": (_retry_same_slot, 1),
    "key_twice": (_key_twice, 1),
    "attempt_skipped": (_set(20, attempt=2), 1),
    "attempt_order": (_attempt_order, 1),
    "attempt_overlap": (_attempt_overlap, 1),
    "cool_down_broken": (_cool_down_broken, 3),
    "over_max_running": (_over_max_running, 1),
    "tickets_unused": (_tickets_unused, 11),
    "queue_restarted": (_queue_restarted, 1),
    "replay_unknown": (_replay_unknown, 1),
    "clock_jumped": (_clock_jumped, 2),
    "shard_starved": (_shard_starved, 1),
}
"""By kind: the function that plants it in a clean log, and how often it occurs. Each has its own queue."""

COMPANY: dict[str, set[str]] = {
    "order_inverted": {"start_late"},
    "slot_twice": {"gap_short"},
    "slot_shared": {"gap_short"},
    "retry_same_slot": {"gap_short"},
}
"""Faults that imply another one: two starts in a slot are also too close, and so on."""


def planted() -> list[Row]:
    """A clean log, and one with each fault."""
    rows = clean("clean")
    for kind, (plant, _) in FAULTS.items():
        mine = clean(kind)
        plant(mine)
        rows += mine
    return rows


def audited(spark: SparkSession) -> Audit:
    """One audit of all planted logs together."""
    from intervalq.spark._audit.audit import audit

    return audit(
        spark,
        frame(spark, planted()),
        interval=dict.fromkeys([*FAULTS, "clean"], INTERVAL),
        max_running=MAX_RUNNING,
        grace=GRACE,
        now=NOW,
        _block=64,
        _piece=PIECE,
    )

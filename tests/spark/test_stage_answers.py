"""Answers that don't fit: they are kept, few are paid for, and a mended schema replays them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql.types import DecimalType, IntegerType, StringType, StructField, StructType

from intervalq.errors import (
    BadResult,
    InvalidOption,
    RowFailed,
    RunChanged,
    TooManyFailures,
    UnreadableValue,
)
from intervalq.ledger import Ledger
from intervalq.ledger.rules import MAX_VALUE, Ended, Look, Record
from intervalq.spark import CallContext
from intervalq.spark._paced import trial
from spark.stages import ask, batches, staged

MONEY = StructType([StructField("price", DecimalType(10, 2))])
WIDE = StructType([StructField("price", DecimalType(20, 6))])
GIVES_PRICE = StructType([StructField("price", StringType())])
COUNTED = StructType([StructField("price", IntegerType())])


class Prices:
    """A function that gives each row a price, and counts its calls."""

    def __init__(self, price: object = 1.234) -> None:
        self.price = price
        self.of: Counter[int] = Counter()

    async def __call__(self, row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        self.of[row["id"]] += 1
        return {"price": self.price}


@pytest.fixture
def options(ledger: str) -> dict[str, Any]:
    return {"key": "id", "run": "r", "ledger": ledger}


@pytest.mark.parametrize(("errors", "calls"), [("raise", 1), ("column", 2)])
@pytest.mark.parametrize("has_ledger", [True, False])
def test_few_unfit_answers_are_paid_for(
    options: dict[str, Any], errors: str, calls: int, *, has_ledger: bool
) -> None:
    """2,000 rows whose answers don't fit cost one call, or two if errors are data."""
    prices = Prices()
    some = options if has_ledger else {"ledger": None}
    for _ in range(4):  # as Spark tries a task again
        with pytest.raises((BadResult, RowFailed, TooManyFailures), match="more than 2 digits after"):
            list(staged(prices, batches(range(2_000)), MONEY, errors=errors, concurrency=16, **some))
    assert sum(prices.of.values()) == (calls if has_ledger else 4 * calls)


def test_a_mended_schema_replays(options: dict[str, Any]) -> None:
    prices = Prices()
    with pytest.raises(TooManyFailures, match=r"kept in run 'r'.*aren't called again") as stopped:
        list(staged(prices, batches(range(50)), MONEY, errors="column", **options))
    assert (stopped.value.count, stopped.value.unfit, stopped.value.run) == (2, True, "r")
    rows = list(staged(prices, batches(range(50)), WIDE, errors="column", **options))
    assert {str(row["price"]) for row in rows} == {"1.234000"}
    assert prices.of == Counter(range(50))
    replayed = [row["id"] for row in rows if row["_iq"]["replayed"]]
    assert len(replayed) == 2
    assert all(row["_iq"]["error"] is None for row in rows)


def test_an_odd_row_is_data_and_keeps_its_answer(options: dict[str, Any]) -> None:
    async def priced(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls[row["id"]] += 1
        return {"price": "n/a" if row["id"] in (0, 7) else 1}

    calls: Counter[int] = Counter()
    for _ in range(2):
        rows = {
            row["id"]: row for row in staged(priced, batches(range(30)), MONEY, errors="column", **options)
        }
        assert [key for key, row in rows.items() if row["_iq"]["error"]] == [0, 7] or len(rows) == 30
        assert {key for key, row in rows.items() if row["_iq"]["error"]} == {0, 7}
        assert "column price is decimal128(10, 2): 'n/a' is a str, not a number" in rows[7]["_iq"]["error"]
    assert calls == Counter(range(30))
    kept = {row.key: json.loads(row.value) for row in ask(options["ledger"], Look()).rows}
    assert kept["7"]["answer"] == {"price": "n/a"}
    assert kept["8"]["answer"] == {"price": 1}


@pytest.mark.parametrize("errors", ["raise", "column"])
def test_another_schema_is_refused_or_replayed(options: dict[str, Any], errors: str) -> None:
    prices = Prices(2)
    list(staged(prices, batches(range(10)), MONEY, errors=errors, **options))
    with pytest.raises(RunChanged, match=r"run 'r'.*another schema, of price.*replay=True"):
        list(staged(prices, batches(range(20)), COUNTED, errors=errors, **options))
    rows = list(staged(prices, batches(range(20)), COUNTED, errors=errors, replay=True, **options))
    assert {row["price"] for row in rows} == {2}
    assert set(prices.of.values()) == {1}


def test_another_version_is_refused_or_replayed_and_calls_failed_rows_again(options: dict[str, Any]) -> None:
    fails = True

    async def priced(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls[row["id"]] += 1
        if row["id"] % 5 == 1 and fails:
            raise RuntimeError(f"no {row['id']}")
        return {"price": "free" if row["id"] % 5 == 2 and fails else 1}

    calls: Counter[int] = Counter()
    options |= {"errors": "column"}
    list(staged(priced, batches(range(10)), MONEY, version="v1", **options))
    again = list(staged(priced, batches(range(10)), MONEY, version="v1", **options))
    assert sum(row["_iq"]["error"] is not None for row in again) == 4
    assert calls == Counter(range(10))
    fails = False
    with pytest.raises(RunChanged, match="from another version of the function, 'v1'"):
        list(staged(priced, batches([0]), MONEY, version="v2", **options))
    with pytest.raises(RunChanged, match="from another version of the function, 'v1'"):
        list(staged(priced, batches([0]), MONEY, **options))
    rows = list(staged(priced, batches(range(10)), MONEY, version="v2", replay=True, **options))
    assert [row["_iq"]["error"] for row in rows] == [None] * 10
    assert calls == Counter([*range(10), 1, 2, 6, 7])


@pytest.mark.parametrize(
    "kept", ['{"value":{"price":"1.00"},', '{"value":null,"error":"RuntimeError: down",']
)
def test_rows_of_earlier_versions_are_read(options: dict[str, Any], kept: str) -> None:
    text = kept + '"log":[7,1.0,2.0,3.0,"there",9,1,1]}'
    ask(options["ledger"], Record("s", 1, (Ended("0", text, failed="error" in kept),)))
    prices = Prices()
    (row,) = staged(prices, batches([0]), MONEY, errors="column", **options)
    assert str(row["price"] or row["_iq"]["error"]) in {"1.00", "RuntimeError: down"}
    if "1.00" in kept:
        with pytest.raises(RunChanged, match="another schema"):
            list(staged(prices, batches([0]), StructType([StructField("x", IntegerType())]), **options))
    assert not prices.of


def test_stop_after_failures_for_one_reason(options: dict[str, Any]) -> None:
    async def down(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls[row["id"]] += 1
        if row["id"] < 20 and row["id"] % 4 == 3:
            return {"price": 1}
        raise RuntimeError(f"server {row['id']} said '{row['id']} is down'")

    calls: Counter[int] = Counter()
    options |= {"errors": "column", "concurrency": 1, "stop_after": 5}
    with pytest.raises(TooManyFailures, match=r"5 rows failed.*row '2\d': RuntimeError: server 2") as stopped:
        list(staged(down, batches(range(100)), MONEY, **options))
    assert (stopped.value.count, stopped.value.unfit) == (5, False)
    assert calls.keys() >= set(range(25))
    assert len(calls) < 30  # ends are told a moment after the next call has begun
    with pytest.raises(TooManyFailures):
        list(staged(down, batches(range(25)), MONEY, **options))
    assert set(calls.values()) == {1}, "kept failures stop it without a call"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("server 7 said '9 is down'\nmore", "server # said …"),
        ("KeyError: 'id'", "KeyError: …"),
        ("the function's result for row 'k11' doesn't fit", "the function's result for row … doesn't fit"),
        ('no "a b" at 7f-12', "no … at #"),
    ],
)
def test_a_reason_is_what_errors_have_in_common(error: str, reason: str) -> None:
    assert trial.reason_of(error) == reason


def test_odd_rows_at_the_head_of_a_worker_are_data_if_others_have_results(options: dict[str, Any]) -> None:
    async def priced(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        return {"price": "n/a" if row["id"] >= 50 else 1}

    options |= {"errors": "column"}
    list(staged(priced, batches(range(10)), MONEY, **options))
    trial._proven.clear()  # as in another Python worker
    rows = list(staged(priced, batches(range(50, 60)), MONEY, **options))
    assert all("'n/a' is a str" in row["_iq"]["error"] for row in rows)
    trial._proven.clear()
    assert len(list(staged(priced, batches(range(50, 60)), MONEY, **options))) == 10
    without = {"ledger": None, "errors": "column"}
    with pytest.raises(TooManyFailures, match="2 rows had answers that don't fit"):
        list(staged(priced, batches(range(50, 60)), WIDE, **without))
    assert len(list(staged(priced, batches(range(50, 60)), WIDE, canary=False, **without))) == 10


def test_unfit_answers_after_other_failures_stop_a_task(options: dict[str, Any]) -> None:
    async def slow(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        calls[row["id"]] += 1
        if row["id"] < 2:
            raise TimeoutError
        return {"price": "n/a"}

    calls: Counter[int] = Counter()
    with pytest.raises(TooManyFailures):
        list(staged(slow, batches(range(200)), MONEY, errors="column", concurrency=1, **options))
    assert len(calls) < 6


@pytest.mark.parametrize("text", ["cut \ud83d", "\udc00"])
def test_a_text_with_half_a_pair_is_kept(options: dict[str, Any], text: str) -> None:
    prices = Prices(text)
    for _ in range(2):
        (row,) = staged(prices, batches([0]), GIVES_PRICE, errors="column", **options)
        assert "not valid text" in row["_iq"]["error"]
    assert prices.of == {0: 1}
    (kept,) = ask(options["ledger"], Look()).rows
    assert json.loads(kept.value)["answer"] == {"price": text}


def test_a_large_answer_that_does_not_fit_is_an_error_of_its_row(options: dict[str, Any]) -> None:
    prices = Prices("x" * (MAX_VALUE - 120))
    for _ in range(2):
        (row,) = staged(prices, batches([0]), MONEY, errors="column", **options)
        assert "not a number" in row["_iq"]["error"]
    assert prices.of == {0: 1}


class Flipped:
    """A codec."""

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    decode = encode


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("codec", [None, Flipped()])
def test_large_answers_are_in_files(
    options: dict[str, Any], tmp_path: Path, codec: Flipped | None, *, given: bool
) -> None:
    text = "ü" * MAX_VALUE
    prices = Prices(text)
    place = tmp_path / ("large/run=r" if given else "state.db.answers/run=r")
    options |= {"errors": "column", "codec": codec}
    if given:
        options["large_answers"] = f"{tmp_path}/large"
    for _ in range(2):  # the answer of the second row doesn't fit, and is kept, too
        (row,) = staged(prices, batches([0]), GIVES_PRICE, **options)
        assert row["price"] == text
        (row,) = staged(prices, batches([1]), MONEY, **options)
        assert "not a number" in row["_iq"]["error"]
    assert row["_iq"]["replayed"]
    (row,) = staged(prices, batches([1]), GIVES_PRICE, **options)
    assert row["price"] == text
    assert prices.of == {0: 1, 1: 1}
    files = sorted(place.iterdir())
    assert [file.stat().st_mode & 0o777 for file in [*files, place]] == [0o600, 0o600, 0o700]
    assert (text in files[0].read_text()) == (codec is None)

    def remaining_after(change: Callable[[Ledger], Awaitable[object]]) -> int:
        async def do() -> None:
            async with Ledger("r", options["ledger"], large_answers=options.get("large_answers")) as one:
                await change(one)

        anyio.run(do)
        return len(list(place.iterdir())) if place.exists() else 0

    assert remaining_after(lambda one: one.forget(["0"])) == 1
    next(place.iterdir()).write_text("cut off")
    with pytest.raises(UnreadableValue, match="row '1' of ledger 'r'"):
        list(staged(prices, batches([1]), GIVES_PRICE, **options))
    assert remaining_after(lambda one: one.forget(["1", "2"], ["failed"])) == 1, "row 2 may have been kept"
    assert remaining_after(Ledger.drop) == 0
    assert not place.exists()


def test_a_large_answer_that_has_come_is_kept_although_calls_are_cut(options: dict[str, Any]) -> None:
    is_called = anyio.Event()
    prices = Prices("x" * MAX_VALUE)

    async def call(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        if row["id"] == 1:
            await is_called.wait()
            raise RuntimeError("down")
        is_called.set()
        with anyio.CancelScope(shield=True):  # as a call that can't be cut
            for _ in range(100):  # turns of the event loop, in which the task fails
                await anyio.lowlevel.checkpoint()
        return await prices(row, ctx)

    options |= {"canary": False}
    with pytest.raises(RuntimeError, match="down"):
        list(staged(call, batches([0, 1]), GIVES_PRICE, drain=0, **options))
    assert len(list(staged(prices, batches([0]), GIVES_PRICE, **options))) == 1
    assert prices.of == {0: 1}


@pytest.mark.parametrize("more", [{}, {"size": "7"}])
def test_an_answer_that_looks_like_the_name_of_a_file(options: dict[str, Any], more: dict[str, str]) -> None:
    async def odd(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
        return {"$file": "../../etc/passwd", **more}

    schema = StructType([StructField(name, StringType()) for name in ("$file", *more)])
    for _ in range(2):
        (row,) = staged(odd, batches([0]), schema, **options)
        assert row["$file"] == "../../etc/passwd"


def test_a_folder_that_can_not_be_written_is_an_error_of_its_row(
    options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "state.db.answers").write_text("no folder")
    (row,) = staged(Prices("x" * MAX_VALUE), batches([0]), GIVES_PRICE, errors="column", **options)
    assert re.search(r"can't be written into .*run=r: .*Not a directory", row["_iq"]["error"])


def test_an_answer_of_a_type_that_can_not_be_kept(options: dict[str, Any]) -> None:
    (row,) = staged(Prices(object()), batches([0]), MONEY, errors="column", **options)
    assert "a object can't be kept: return values of JSON" in row["_iq"]["error"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"stop_after": 3}, 'with errors="raise" the first one'),
        ({"stop_after": 0, "errors": "column"}, "stop_after"),
        ({"version": "v1", "ledger": None}, "ledger=None keeps none"),
        ({"replay": True, "ledger": None}, "ledger=None keeps none"),
        ({"large_answers": "x", "ledger": None}, "ledger=None keeps none"),
        ({"large_answers": " "}, "must be a path"),
        ({"large_answers": "nowhere://x"}, "can't be opened"),
        ({"version": "no spaces"}, "version"),
    ],
)
def test_settings_that_disagree(options: dict[str, Any], wrong: dict[str, Any], why: str) -> None:
    with pytest.raises((InvalidOption, ValueError), match=why):
        list(staged(Prices(), batches([]), MONEY, **options | wrong))

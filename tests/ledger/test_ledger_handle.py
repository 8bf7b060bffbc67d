"""The handle of a ledger, on a store in memory; the conformance suite covers the other stores."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from intervalq.errors import InvalidInterval, InvalidName, InvalidOption, LedgerNotFound, UnknownStore
from intervalq.ledger import Ledger, LedgerInfo, LedgerRow, ledgers
from intervalq.ledger._checks import checked_key, checked_keys, checked_shown
from intervalq.ledger._files import ArrowFiles
from intervalq.ledger._large import LargeAnswers
from intervalq.ledger.rules import Answer, Claim, Command, Drop, Ended, Look, Record
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq_stores.memory.ledgers import MemoryLedgerStore

NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000


@pytest.fixture
async def store() -> LedgerStore:
    """A ledger `run` with a row in each state."""
    store = MemoryLedgerStore(clock=lambda: NOW)
    ended = Ended("done", '{"value": 1}'), Ended("failed", '{"error": "no"}', failed=True)
    await store.apply("run", Record("s", HOUR, ended), NOW - HOUR)
    for session, expiry in (("gone", HOUR), ("s", 2 * HOUR)):
        for started in (False, True):
            claim = Claim(session, expiry, (f"{session} {started}",), started=started)
            await store.apply("run", claim, NOW - HOUR)
    return store


async def states(ledger: Ledger) -> dict[str, str]:
    return {row.key: row.state async for row in ledger.rows()}


async def test_a_ledger_in_numbers_and_in_rows(store: LedgerStore) -> None:
    async with Ledger("run", store) as ledger:
        info = await ledger.info()
        assert info == LedgerInfo("run", 1_699_996_400.0, None, False, 1, 1, 1, 1, 1, 1)
        assert await states(ledger) == {
            "done": "done", "failed": "failed", "gone False": "free", "gone True": "unknown",
            "s False": "claimed", "s True": "started",
        }  # fmt: skip
        found = [row async for row in ledger.rows(["done", "unknown"])]
        assert found == [
            LedgerRow("done", "done", 1, '{"value": 1}', info.created),
            LedgerRow("gone True", "unknown", 1, "", info.created),
        ]
        assert [row.value for row in found] == [{"value": 1}, None]
        assert repr(ledger) == "Ledger('run', 'memory://')"
    assert await ledgers(store) == ["run"]


async def test_cancel_and_expire(store: LedgerStore) -> None:
    ledger = Ledger("run", store)
    await ledger.cancel()
    assert (await ledger.info()).cancelled
    await ledger.uncancel()
    assert not (await ledger.info()).cancelled
    for after in (90, "90s", timedelta(seconds=90)):
        await ledger.expire(after)
        assert (await ledger.info()).expires == NOW / 1e6 + 90
    await ledger.expire(None)
    assert (await ledger.info()).expires is None
    for wrong in (0, -1, "soon", "1000d"):
        with pytest.raises(InvalidInterval, match="expire"):
            await ledger.expire(wrong)


async def test_forget(store: LedgerStore) -> None:
    ledger = Ledger("run", store)
    with pytest.raises(InvalidOption, match="drop"):
        await ledger.forget()
    assert await ledger.forget(["done", "done", "gone False", "s False", "not there"]) == 2
    assert await ledger.forget(["s False", "s True"], ["claimed", "failed"]) == 1
    assert await ledger.forget(shown=["failed", "unknown"]) == 2
    assert await states(ledger) == {"s True": "started"}


async def test_forget_goes_through_all_pages(store: LedgerStore) -> None:
    ledger = Ledger("run", store)
    for first in range(0, 2_500, 500):
        ends = tuple(Ended(str(number), "1") for number in range(first, first + 500))
        await store.apply("run", Record("s", HOUR, ends))
    keys = [str(number) for number in range(1_200)]
    assert await ledger.forget(keys) == 1_200
    assert await ledger.forget(shown=["done"]) == 1_301
    assert (await ledger.info()).done == 0


async def test_pages_are_small_where_values_are_large(store: LedgerStore) -> None:
    limits: list[int] = []

    class Noted(MemoryLedgerStore):
        async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
            if isinstance(command, Look):
                limits.append(command.limit)
            return await super().apply(ledger, command, now)

    noted = Noted(clock=lambda: NOW)
    for number in range(300):
        size = 10 if number < 100 else 100_000
        await noted.apply("run", Record("s", HOUR, (Ended(f"{number:03}", "x" * size),)))
    assert len([row async for row in Ledger("run", noted).rows()]) == 300
    assert limits == [100, 200]
    limits.clear()
    for number in range(300):
        await noted.apply("run", Record("s", HOUR, (Ended(f"A{number:03}", "x" * 100_000),)))
    assert len([row async for row in Ledger("run", noted).rows()]) == 600
    assert limits[:4] == [100, 200, 100, 50]


class _Begins(MemoryLedgerStore):
    """A store in which another run of the same name begins just after the ledger was dropped."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        answer = await super().apply(ledger, command, now)
        if isinstance(command, Drop):
            self._begin()
        return answer


@pytest.mark.parametrize("arrow", [False, True])
async def test_drop_spares_large_answers_of_a_run_that_begins(tmp_path: Path, *, arrow: bool) -> None:
    large = LargeAnswers(str(tmp_path), "run")
    if arrow:
        fs = pytest.importorskip("pyarrow.fs")
        large._files = ArrowFiles(fs.LocalFileSystem())
    large.write("k", "old")
    files = list[str]()
    ledger = Ledger("run", _Begins(lambda: files.append(large.write("k", "new"))))
    ledger._large = large
    await ledger.drop()
    assert large.names() == files
    assert large.read(files[0]) == "new"
    large.drop(files)
    assert not Path(large.place).exists()


async def test_where_there_is_no_ledger(store: LedgerStore) -> None:
    ledger = Ledger("other", store)
    for call in (
        ledger.info(),
        ledger.cancel(),
        ledger.uncancel(),
        ledger.expire(1),
        ledger.forget(["a"]),
        ledger.forget([]),
        ledger.forget(shown=["done"]),
        anext(ledger.rows()),
    ):
        with pytest.raises(LedgerNotFound, match="ledger list"):
            await call
    assert not await ledger.drop()
    assert await ledgers(store) == ["run"]
    assert await Ledger("run", store).drop()
    assert await ledgers(store) == []


async def test_stores_by_url_and_path(tmp_path: Path) -> None:
    url = f"memory://{secrets.token_hex(4)}"
    await open_ledger_store(url).apply("run", Claim("s", HOUR, ("a",)))
    assert (await Ledger("run", url).info()).claimed == 1
    assert await ledgers(url) == ["run"]
    assert await ledgers(tmp_path / "state.db") == []
    assert await Ledger("run", str(tmp_path / "state.json")).drop() is False
    with pytest.raises(UnknownStore):
        Ledger("run", "mysql://host")
    with pytest.raises(InvalidName):
        Ledger("a/b", url)


def test_what_can_be_a_key_and_a_state() -> None:
    for key in ("a", "\U0001f511" * 512, " \n"):
        assert checked_key(key) == key
    for wrong in ("", "a" * 513, "a\0", "\ud800", 1, None, b"a"):
        with pytest.raises(InvalidOption, match="key of a row"):
            checked_key(wrong)
    assert checked_keys(["b", "a", "b"]) == ("b", "a")
    with pytest.raises(InvalidOption, match="list"):
        checked_keys("abc")
    assert checked_shown(["failed", "done", "failed"]) == ("done", "failed")
    with pytest.raises(InvalidOption, match="must be one of"):
        checked_shown(["gone"])

"""Power cuts: what a store answered exists afterwards, and a store that doesn't sync is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

import servers
from backends import both_backends
from faults import power
from faults.disk import Disk
from faults.needs import need_fuse, need_server
from faults.power_process import LEDGER, QUEUE
from intervalq import IntervalQueue
from intervalq.ledger.rules import Ended, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.tasks import Tasks

anyio_backend = both_backends

AFTER = 20
"""Answers of each kind before a cut."""


def _trial(store: str, *, cuts: int, plant: str = power.NONE) -> tuple[int, list[str]]:
    need_fuse()
    try:
        return power.trial(store, cuts=cuts, after=AFTER, plant=plant)
    except servers.NotInstalledError as error:
        need_server(error)


@pytest.mark.parametrize("store", power.STORES)
def test_what_was_answered_is_there_after_power_cuts(store: str) -> None:
    answers, lost = _trial(store, cuts=2)
    assert lost == []
    assert answers >= 2 * 2 * AFTER


@pytest.mark.parametrize("url", ["file://{}/state.json", "sqlite://{}/state.db"])
async def test_what_was_answered_is_there_though_another_process_had_just_made_the_folder(url: str) -> None:
    """It may not have synced it yet, and never will if it dies."""
    need_fuse()
    with Disk(strict=True) as disk:
        folder = disk.path / "new" / "newer"
        folder.mkdir(parents=True)
        store = url.format(folder)
        async with IntervalQueue("slow", interval=3600, store=store) as queue, queue.slot() as slot:
            pass
        disk.cut()
        reported = power.Account([["began", "slow", slot.ticket, slot.due]])
        assert await power.judge_slots(store, reported) == []


@pytest.mark.parametrize(
    ("store", "plant"),
    [(store, plants[0]) for store, plants in power.PLANTS.items()] + [("json", "folder")],
)
def test_a_store_that_does_not_sync_is_seen_to_lose_what_it_answered(store: str, plant: str) -> None:
    lost = _trial(store, cuts=1, plant=plant)[1]
    assert lost
    assert store == "nats" or [fault for fault in lost if fault.startswith("rows")], "ledgers are seen, too"


async def test_the_judges_name_each_kind_of_loss(tmp_path: Path) -> None:
    tasks, slots = f"sqlite://{tmp_path}/tasks.db", f"sqlite://{tmp_path}/state.db"
    async with Tasks(tasks) as store:
        for value in ("there", "there", "back"):
            await store.insert(QUEUE, value)
    async with IntervalQueue("slow", interval=3600, store=slots) as queue, queue.slot() as slot:
        pass
    for wrong, found in (
        (["inserted", "there"], "there twice: ['there']"),
        (["inserted", "gone"], "inserted, and gone: ['gone']"),
        (["ended", "back"], "ended, and back: ['back']"),
    ):
        faults = await power.judge_tasks(tasks, power.Account([wrong]))
        assert [fault for fault in faults if found in fault]
    rows = f"sqlite://{tmp_path}/rows.db"
    await open_ledger_store(rows).apply(
        LEDGER, Record("one", 10**9, (Ended("there", '"there"'), Ended("odd", "1")))
    )
    for wrong, found in (
        (["started", "gone"], "started, and gone: ['gone']"),
        (["recorded", "gone"], "recorded, and not: ['gone']"),
        (["recorded", "odd"], "recorded, and not: ['odd']"),
    ):
        (fault,) = await power.judge_rows(rows, power.Account([wrong, ["recorded", "there"]]))
        assert found in fault
    both = power.Account([["inserted", "ending"], ["ending", "ending"], ["began", "slow", 1, slot.due]])
    assert len(await power.judge_tasks(tasks, both)) == 1, "the end that was on its way may have been made"
    assert await power.judge_slots(slots, both) == []
    for reported, found in (
        (["began", "slow", 9, slot.due], "slow: it was at 9, 9"),
        (["saw", "slow", 9, 1], "slow: it was at 9, 1"),
        (["saw", "slow", 1, 9], "slow: it was at 1, 9"),
        (["began", "slow", 1, slot.due + 3600], "the next job may begin"),
        (["began", "lost", 1, slot.due], "lost: it is gone"),
    ):
        (fault,) = await power.judge_slots(slots, power.Account([reported]))
        assert found in fault

"""Changes of durable schedules by a process that reads old rows: on NATS, whoever has claimed a row does."""

from __future__ import annotations

from typing import TypeVar, cast

import anyio

from intervalq.tasks.rules import Command, Depend, Modify, Row, Select
from tasks.fake_store import FakeStore, handle
from virtual_store import in_virtual_time

A = TypeVar("A")


class OldReads(FakeStore):
    """A way to the store by which one look finds what was there before."""

    old: tuple[Row, ...] = ()

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        if self.old and str(type(command)) == str(Select):
            rows, self.old = self.old, ()
            return cast("A", rows)
        return await super().apply(command, now)


@in_virtual_time
async def test_a_resume_ends_a_pause_that_it_has_not_seen() -> None:
    store = FakeStore()
    line = OldReads(store.behind)
    async with handle(store.line()) as one, handle(line) as two:
        await one.schedule("s", "out", every="1h")
        line.old = (await store.row("schedule/s"),)
        await one.schedules.pause("s")
        await two.schedules.resume("s")
        assert not (await one.schedules.inspect("s")).paused
        await two.schedules.resume("s")
        assert line.calls[-1] == Modify(depends=(Depend("schedule/s", 2),)), "which changes nothing"


@in_virtual_time
async def test_the_last_declaration_holds_although_another_one_was_not_seen() -> None:
    store = FakeStore()
    line = OldReads(store.behind)
    async with handle(store.line()) as one, handle(line) as two:
        await one.schedule("s", "out", every="1h")
        line.old = (await store.row("schedule/s"),)
        await one.schedule("s", "out", every="2h")
        await two.schedule("s", "out", every="1h")
        assert (await one.schedules.inspect("s")).plan == "every 1h"
        await anyio.sleep(1)
        await two.schedule("s", "out", every="1h")
        assert (await store.row("schedule/s")).version == 2


@in_virtual_time
async def test_what_is_inserted_now_has_the_last_value_although_it_was_not_seen() -> None:
    store = FakeStore()
    line = OldReads(store.behind)
    async with handle(store.line()) as one, handle(line) as two:
        await one.schedule("s", "out", "old", every="1h")
        line.old = (await store.row("schedule/s"),)
        await one.schedule("s", "out", "new", every="1h")
        await two.schedules.fire("s")
        assert [task.value for task in await one.tasks("out")] == ["new"]

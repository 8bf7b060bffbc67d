"""Two handles, each with its own connection to the server: a fault of one doesn't affect the other."""

from __future__ import annotations

import logging
import secrets

import anyio
import pytest
from anyio.lowlevel import checkpoint

from faults.proxy import Fault, patience, proxied
from faults.work import working
from intervalq import IntervalQueue
from intervalq._shard import listener
from intervalq._timing import outage
from intervalq.errors import QueueNotFound, StoreUnavailable

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


@pytest.fixture(params=["redis", "postgres", "pgbouncer"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


async def test_faults_come_and_go_and_every_call_ends_once(server_url: str) -> None:
    """Meanwhile the other handle goes on, and starts keep their distance; afterwards both do."""
    async with (
        proxied(server_url) as bad,
        proxied(server_url) as good,
        working([bad.url, good.url]) as work,
    ):
        with patience(0.3):
            for fault in FAULTS:
                await bad.begin(fault)
                if fault is not Fault.REFUSE:
                    await bad.until(lambda: bad.hits > 0)
                await work.more(3, handle=1)
                await bad.heal()
                await work.more(2)
        await work.stop()
        work.check()
        state = await work.handles[1].inspect()
        assert state.regressions == 0, "counters never go back"
        await work.handles[1].drop()


async def test_dropped_every_few_requests_it_still_gets_there(server_url: str) -> None:
    async with (
        proxied(server_url) as bad,
        proxied(server_url) as good,
        working([bad.url, good.url]) as work,
    ):
        for fault in (Fault.RESET_REQUEST, Fault.RESET_ANSWER, Fault.CUT_ANSWER):
            for requests in range(1, 6):
                await bad.begin(fault, after=requests)
                await bad.until(lambda: bad.hits > 0)
                await bad.heal()
        await work.stop()
        work.check()
        await work.handles[1].drop()


async def test_an_outage_that_lasts_ends_all_calls_with_an_error_and_the_queue_goes_on_after(
    server_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No job begins while the store is unreachable; later calls are served by the same handle."""
    monkeypatch.setattr(outage, "OUTAGE", 1)
    async with proxied(server_url) as proxy, working([proxy.url], callers=4) as work:
        await proxy.begin(Fault.REFUSE)
        await work.until(lambda: len(work.errors) == 4)
        assert {type(error) for _, error in work.errors} == {StoreUnavailable}
        begun = len(work.starts)
        with pytest.raises(StoreUnavailable):
            await work.handles[0].inspect()
        assert len(work.starts) == begun
        await proxy.heal()
        async with anyio.create_task_group() as group:
            work.go(group)
            await work.more(3)
            await work.stop()
        work.check(failed=4)
        await work.handles[0].drop()
    assert "jobs wait for the store" in caplog.text


async def test_a_wake_up_that_gets_lost_costs_a_question(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is resumed while nothing reaches the listener, or its connection is gone."""
    monkeypatch.setattr(listener, "_PATIENCE", {True: 200_000, False: 100_000})
    async with proxied(server_url) as bad, working([bad.url, server_url]) as work:
        with patience(0.3):
            for fault in (Fault.SWALLOW, Fault.BLACK_HOLE, Fault.REFUSE):
                with patience(5):  # no other command asks for these again
                    await work.handles[1].pause()
                while not all(handle._shard().conversation._parked.is_on for handle in work.handles):
                    await checkpoint()
                await bad.begin(fault)
                with patience(5):
                    await work.handles[1].resume()
                if fault is not Fault.REFUSE:
                    await bad.until(lambda: bad.hits > 0)
                await work.more(2, handle=1)
                await bad.heal()
                await work.more(2)
        await work.stop()
        work.check()
        await work.handles[1].drop()


async def test_the_first_contact_by_a_bad_way_is_told_and_makes_nothing(server_url: str) -> None:
    name = f"w{secrets.token_hex(8)}"
    async with proxied(server_url) as proxy, IntervalQueue(name, interval=1, store=proxy.url) as queue:
        for fault in (Fault.REFUSE, Fault.RESET_REQUEST, Fault.CUT_ANSWER):
            await proxy.begin(fault)
            with pytest.raises(StoreUnavailable):
                async with queue.slot():
                    pytest.fail("it began without the store")
            await proxy.heal()
            async with IntervalQueue(name, store=server_url) as other:
                with pytest.raises(QueueNotFound):
                    await other.inspect()
        async with queue.slot() as slot:
            assert slot.ticket == 1
        await queue.drop()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

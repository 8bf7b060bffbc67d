"""Handles that don't know the common rate of a key get none of its slots, whoever used the key first."""

from __future__ import annotations

from typing import Any

import pytest

from intervalq import IntervalQueue, Limit
from intervalq.errors import ConfigMismatch, InvalidOption
from keyed_world import FarPairs, Log, handle, run

NO_EACH = r"^queue 'api:a' runs with each= \(5/s\), but this handle has no each=: its each= can't be changed"


async def start(queue: IntervalQueue, log: Log, key: str = "a") -> None:
    async with queue[key].slot():
        log.began(key)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rate": 5},
        {"rate": 10},
        {"rate": 5, "on_mismatch": "adopt"},
        {"rate": 5, "on_mismatch": "update"},
        {"limits": ["5/s"]},
    ],
)
def test_a_handle_without_each_gets_no_slot_and_wastes_none(options: dict[str, Any]) -> None:
    async def main(store: FarPairs, log: Log) -> None:
        keyed = handle(store, rate=10, each="5/s")
        await start(keyed, log)
        before = await keyed["a"].inspect()
        other = handle(store, **options)
        for _ in range(2):
            with pytest.raises(ConfigMismatch, match=NO_EACH):
                await start(other, log)
        with pytest.raises(ConfigMismatch, match=NO_EACH):
            async with other["a"].try_slot(within=10):
                raise AssertionError
        assert (await keyed["a"].inspect()).ticket == before.ticket
        await other.close()
        await start(keyed, log)

    assert len(run(main).starts) == 2


def test_a_key_that_was_used_without_the_common_rate_is_taken_over() -> None:
    """Until then, its jobs start beside those of the other keys: no store can tell that this is a mistake."""

    async def main(store: FarPairs, log: Log) -> None:
        other, keyed = handle(store, rate=5), handle(store, rate=10, each="5/s")
        await start(other, log)
        await start(keyed, log)
        with pytest.raises(ConfigMismatch, match=NO_EACH):
            await start(other, log)
        await start(other, log, "b")  # no handle with `each` has used this one
        await start(keyed, log)
        await other.close()

    log = run(main)
    assert [key for _, key in log.starts] == ["a", "a", "b", "a"]
    assert log.spacing("a") >= 180_000


def test_a_record_without_the_mark_keeps_what_its_limits_counted() -> None:
    """Handles of earlier versions wrote such records."""

    async def main(store: FarPairs, log: Log) -> None:
        other = handle(store, limits=["3 tokens/min"])
        async with other["a"].slot(cost={"tokens": 2}):
            log.began("a")
        keyed = handle(store, rate=10, each=["shared", "3 tokens/min"])
        assert [limit.taken for limit in (await keyed["a"].inspect()).limits] == [2]
        async with keyed["a"].slot(cost={"tokens": 2}):
            log.began("a")

    (first, _), (second, _) = run(main).starts
    assert second - first >= 60_000_000


@pytest.mark.parametrize(("first", "second"), [("5/s", "shared"), ("shared", "5/s")])
@pytest.mark.parametrize("on_mismatch", ["raise", "adopt", "update"])
def test_handles_must_agree_whether_a_key_has_a_rate(first: str, second: str, on_mismatch: str) -> None:
    """Otherwise the second one would change, or end, the rate of each key for everybody, silently."""

    async def main(store: FarPairs, log: Log) -> None:
        keyed = handle(store, rate=10, each=first)
        await start(keyed, log)
        for _ in range(2):
            says = rf"runs with each= \({first}\), but this handle has each= \({second}\)"
            with pytest.raises(ConfigMismatch, match=says):
                await start(handle(store, rate=10, each=second, on_mismatch=on_mismatch), log)
        await start(keyed, log)

    assert run(main).spacing() >= (180_000 if first == "5/s" else 90_000)


def test_a_record_that_others_made_anew_with_another_each_is_refused_at_once() -> None:
    """A process that gets several slots of a key lets them move together if the key has no rate."""

    async def main(store: FarPairs, log: Log) -> None:
        shared, paced = handle(store, rate=10, each="shared"), handle(store, rate=10, each="5/s")
        await start(shared, log)
        await shared["a"].drop()
        await start(paced, log)
        with pytest.raises(
            ConfigMismatch, match=r"runs with each= \(5/s\), but this handle has each= \(shared\)"
        ):
            await start(shared, log)

    run(main)


def test_a_handle_without_each_may_look_hold_and_drop_and_configures_what_the_key_has() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        for each in ("5/s", "shared"):
            keyed, other = handle(store, rate=10, each=each), handle(store)["a"]
            await start(keyed, log)
            assert (await other.inspect()).ticket == 1
            await other.pause()
            assert (await keyed["a"].inspect()).is_held
            await other.resume()
            assert await other.reclaim() == 0
            others: list[dict[str, Any]] = [{"burst": 2}, {"max_running": 1}]
            for wrong in others:
                with pytest.raises(InvalidOption, match="is a key under the rate of 'api'"):
                    await other.configure(**wrong)
            with pytest.raises(InvalidOption, match="can't be a limit of each key"):
                await other.configure(limits=[Limit(5, "1h", edge="utc")])
            if each == "shared":
                with pytest.raises(InvalidOption, match="is a key under the rate of 'api'"):
                    await other.configure(rate=2)
                await other.configure(weight=2)
            else:
                with pytest.raises(InvalidOption, match="under each='shared'"):
                    await other.configure(weight=2)
                await other.configure(rate=2)
                assert (await keyed["a"].inspect()).interval == 0.5
            await other.drop()
            assert await keyed.keys() == []
            await start(keyed, log)  # in a new record
            await keyed.drop(keys=True)

    assert len(run(main).starts) == 4

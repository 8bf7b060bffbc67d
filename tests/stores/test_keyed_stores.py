"""Every store with keys under one rate does the same steps on two records as the rules."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intervalq import IntervalQueue, rules
from intervalq._keys.names import token
from intervalq._keys.store import KeyStore
from intervalq._keys.view import CommonView
from intervalq.errors import ConfigMismatch, UnsupportedOperation
from intervalq.keyed import Common, KeyedAnswer, apply_keyed
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    Drop,
    HighWaterMark,
    Inspect,
    Limit,
    Settings,
    State,
)
from intervalq.store import Pairing, Store, Waking, open_store, pairing
from intervalq.testing.keyed import KeyedSource

STORES = ["memory", "json", "sqlite", "redis", "valkey", "redis_cluster", "postgres", "remote"]


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: str = request.param
    if kind == "memory":
        return "memory://"
    if kind in {"json", "sqlite"}:
        return str(tmp_path / ("state.json" if kind == "json" else "state.db"))
    found: str = request.getfixturevalue(f"{kind}_url")
    return found


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(seed=st.integers(0, 2**32))
def test_every_answer_is_that_of_the_rules(portal: BlockingPortal, url: str, seed: int) -> None:
    """With random commands and a given clock, store and rules give the same answers and records."""
    name = f"keyed-{secrets.token_hex(6)}"
    source = KeyedSource(seed, strangers=True)
    states: dict[str, State | None] = {}

    async def sequence() -> None:
        store = open_store(url)
        assert isinstance(store, Pairing)
        for number in range(40):
            key, command, known, now = source.next()
            context = f"seed {seed}, step {number}: {command} with {known} at {now} on {states}"
            record = f"{name}:{key}" if key else name
            if known is None and not (key and "cluster" in url):  # there, it would be another record
                states[key], expected = rules.apply(states.get(key), command, now)
                assert await store.apply(record, command, now) == expected, context
            if known is None:
                continue
            states[key], states[""], made = apply_keyed(states.get(key), states.get(""), command, known, now)
            answer = await store.apply_keyed(record, command, replace(known, record=name), now)
            assert answer == made, context
            for each, kept_as in ((key, record), ("", name)):
                kept = await store.apply(kept_as, Inspect(), now)
                assert kept == rules.apply(states[each], Inspect(), now)[1], context
            source.learn(key, command, answer)
        for record in (name, *(f"{name}:{key}" for key in "abc")):
            await store.apply(record, Drop())
        await store.aclose()

    portal.call(sequence)


def test_a_slot_whose_place_has_to_wait_is_not_granted_with_those_before_it(
    portal: BlockingPortal, url: str
) -> None:
    """A limit has room for one of two slots now, and for the other one 64 ms later."""
    name, now = f"keyed-{secrets.token_hex(6)}", 1_000_000_000_000_000
    common = Settings(1_000, limits=(Limit(1, 64_000, "tokens"),))
    known = Common(record=name, settings=common, own_pace=False, weight=2, nonce="common")
    first = Advance(
        settings=Settings(1_000, ephemeral=True), nonce="a", take=2, units=((1,), (1,)), notice=50
    )

    async def twice() -> None:
        store = open_store(url)
        assert isinstance(store, Pairing)
        key = f"{name}:a"
        made = await store.apply_keyed(key, replace(first, reach=-1), known, now)
        both = tuple([slot._replace(units=(1,)) for slot in made.answer.taken])
        again = replace(known, generation="common")
        asked = Advance(settings=first.settings, generation="shared:a", slots=both, reach=FOREVER)
        made = await store.apply_keyed(key, asked, again, now)
        assert made.answer.granted == (1,)
        assert made.common is not None
        assert [place.ticket for place in made.places] == [1, 2]
        waits = made.places[1].slot.due - made.places[0].slot.due
        assert 64_000 <= waits <= 66_000
        for record in (name, key):
            await store.apply(record, Drop())
        await store.aclose()

    portal.call(twice)


class _At:
    """A store whose clock reads what it is told."""

    def __init__(self, behind: Store, now: int) -> None:
        self.url, self.behind, self.now = behind.url, behind, now
        self.names, self.aclose = behind.names, behind.aclose

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        del now
        return await self.behind.apply(queue, command, self.now)

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        del now
        return await pairing(self.behind).apply_keyed(queue, command, known, self.now)


def test_a_slot_that_is_granted_again_counts_once(portal: BlockingPortal, url: str) -> None:
    """The first answers to two slots come too late, and then another key has a place before theirs."""
    name = f"keyed-{secrets.token_hex(6)}"
    limits = (Limit(5_000, 60_000_000, "tokens"),)
    common = Settings(10_000)
    own = Settings(10_000, ephemeral=True, limits=limits, own=1)

    def key_store(store: Store) -> KeyStore:
        return KeyStore(store, name, common, own_pace=False, weight=2, view=CommonView(), on_mismatch="raise")

    async def late() -> list[int]:
        behind = open_store(url)
        start = (await behind.apply(name, Inspect())).now
        store = _At(behind, start)
        a, b = key_store(store), key_store(store)
        made: dict[str, Any] = {"settings": own, "reach": 30_000, "nonce": "g"}
        answer = await a.apply(f"{name}:a", Advance(take=2, units=((100,), (100,)), **made))
        slots = tuple([slot._replace(units=(100,)) for slot in answer.taken])
        for notice in (2_000, 9_000, 5_000, 0):
            store.now += 15_000
            state = answer.state
            assert state is not None
            asked = Advance(
                slots=slots, until=store.now, notice=notice, generation=state.generation,
                high_water_mark=HighWaterMark(state.ticket, state.due, state.late_total), **made,
            )  # fmt: skip
            if not notice:
                await b.apply(f"{name}:b", Advance(take=1, units=((100,),), **made))
            answer = await a.apply(f"{name}:a", asked)
            assert answer.granted or not notice
        async with IntervalQueue(name, rate=100, each=["5_000 tokens/min"], store=url) as queue:
            shown = [(await queue[key].inspect()).limits for key in "ab"]
            await queue.drop(keys=True)
        await behind.aclose()
        return [limit.taken for each in shown for limit in each]

    assert portal.call(late) == [200, 100]


def test_a_handle_without_each_is_refused(portal: BlockingPortal, url: str) -> None:
    """Whichever handle came first. In a cluster, only the other way round: there, it has another record."""
    name = f"keyed-{secrets.token_hex(6)}"

    async def job() -> None:
        pass

    async def both() -> None:
        keyed = IntervalQueue(name, rate=500, each="shared", store=url)
        made: list[dict[str, Any]] = [{}, {"rate": 500}, {"limits": ["9/s"]}]
        others = [IntervalQueue(name, store=url, **options) for options in made]
        first = [] if "cluster" in url else ["b"]
        for key in first:
            await others[1][key].run(job)
        for key in ("a", *first):
            await keyed[key].run(job)
            for other in others:
                with pytest.raises(ConfigMismatch, match="but this handle has no each="):
                    await other[key].run(job)
                assert (await other[key].inspect()).ticket == (await keyed[key].inspect()).ticket
            await keyed[key].run(job)
        await keyed.drop(keys=True)
        for handle in (keyed, *others):
            await handle.close()

    portal.call(both)


async def _one_job(url: str) -> None:
    name = f"q-{secrets.token_hex(4)}"
    async with IntervalQueue(name, rate=100, each="shared", store=url) as queue, queue["a"].slot():
        pass


def test_another_store_says_that_it_cannot(portal: BlockingPortal, nats_url: str) -> None:
    with pytest.raises(UnsupportedOperation, match="each="):
        portal.call(_one_job, nats_url)


def test_a_key_in_a_cluster_is_paused_woken_listed_and_dropped_by_its_name(
    portal: BlockingPortal, redis_cluster_url: str
) -> None:
    """Its record is in the hash slot of the common one, and handles without `each` find it there."""
    name = f"q-{secrets.token_hex(4)}"

    async def paused() -> None:
        store = open_store(redis_cluster_url)
        async with (
            IntervalQueue(name, rate=100, each="shared", store=redis_cluster_url) as queue,
            IntervalQueue(name, store=redis_cluster_url) as other,
        ):
            async with queue["a b"].slot():
                pass
            await other["a b"].pause()
            assert (await queue["a b"].inspect()).is_held
            assert not (await queue.inspect()).is_held
            assert isinstance(store, Waking)
            async with store.wakeups(f"{name}:{token('a b')}") as woken:
                await other["a b"].resume()
                with fail_after(30):
                    await woken()
            assert {each for each in await store.names() if each.startswith(name)} == {
                name,
                f"{name}:{token('a b')}",
            }
            await other["a b"].drop()
            assert [each for each in await store.names() if each.startswith(name)] == [name]
            await queue.drop()
        await store.aclose()

    portal.call(paused)

"""The conformance suite: a store is accepted if it passes these tests, which compare it with the rules."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intervalq import rules
from intervalq.rules import (
    Advance,
    Answer,
    Command,
    Drop,
    Finish,
    Hold,
    Inspect,
    Limit,
    Resume,
    Settings,
    State,
)
from intervalq.store import Store, Waking, open_store
from intervalq.testing._suite import Suite, fresh_names, in_portal
from intervalq.testing.commands import CommandSource, small_states
from intervalq.testing.full import slots_of_a_full_queue
from intervalq.testing.sooner import slots_that_came_sooner

if TYPE_CHECKING:
    from collections.abc import Callable

_EACH_SECOND = Settings(interval=1_000_000)


async def _compare(store: Store, name: str, cases: Iterable[list[tuple[Command, int]]]) -> None:
    """Compare each answer to lists of commands, and the record that they leave, with those of the rules."""
    for number, commands in enumerate(cases):
        model: State | None = None
        for command, now in commands:
            model, expected = rules.apply(model, command, now)
            context = f"case {number}: {command} at {now}"
            assert await store.apply(name, command, now) == expected, context
        kept = await store.apply(name, Inspect(), now)
        assert kept == rules.apply(model, Inspect(), now)[1], f"case {number}: {commands}"
        await store.apply(name, Drop())


class StoreSuite(Suite):
    """Subclass it as `class TestMyStore(StoreSuite)` with a `store_url` fixture that returns a URL.

    The store may be in use by others: every test works on queues of random names and drops them.
    """

    steps = 40
    """The number of commands in each random sequence."""

    @pytest.fixture
    def store(self, portal: BlockingPortal, store_url: str) -> Iterator[Store]:
        """The store under test."""
        store = open_store(store_url)
        yield store
        portal.call(store.aclose)

    @pytest.fixture
    def queue(self, portal: BlockingPortal, store: Store) -> Iterator[Callable[[], str]]:
        """Provides names of queues that nobody else uses, and drops the queues at the end."""
        yield from fresh_names(lambda name: portal.call(store.apply, name, Drop()))

    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(seed=st.integers(0, 2**32))
    def test_every_answer_is_that_of_the_rules(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str], seed: int
    ) -> None:
        """Random commands with a given clock: store and rules give the same answers and records."""
        name = queue()
        source = CommandSource(seed)
        model: State | None = None

        async def sequence() -> None:
            nonlocal model
            for number in range(self.steps):
                command, now = source.next(model)
                before = model
                model, expected = rules.apply(model, command, now)
                answer = await store.apply(name, command, now)
                context = f"seed {seed}, step {number}: {command} at {now} on {before}"
                assert answer == expected, context
                kept = await store.apply(name, Inspect(), now)
                assert kept == rules.apply(model, Inspect(), now)[1], context
                source.learn(answer)
            await store.apply(name, Drop())

        portal.call(sequence)

    def test_a_new_record_has_no_limits_of_the_one_before(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str]
    ) -> None:
        """The record had lapsed, and was not removed yet."""
        name, plain = queue(), Settings(interval=1_000, ephemeral=True)
        limited = Settings(interval=1_000, ephemeral=True, limits=(Limit(5, 1_000_000),))
        portal.call(store.apply, name, Advance(settings=limited, nonce="g", take=1), 10**15)
        portal.call(store.apply, name, Advance(settings=plain, nonce="h", take=1), 2 * 10**15)
        state = portal.call(store.apply, name, Inspect(), 2 * 10**15).state
        assert state is not None
        assert (state.settings, state.usage) == (plain, ())

    @in_portal
    async def test_slots_are_given_back_as_by_the_rules_in_all_small_states(
        self, store: Store, queue: Callable[[], str]
    ) -> None:
        """All cases of up to three tickets, each granted, revoked or given back, in time or late."""
        await _compare(store, queue(), small_states())

    @in_portal
    async def test_a_slot_that_came_sooner_is_only_where_it_is_now_as_by_the_rules(
        self, store: Store, queue: Callable[[], str]
    ) -> None:
        """It is listed where it is and where it was, in time and late, also with other settings or a hold."""
        await _compare(store, queue(), slots_that_came_sooner())

    @in_portal
    async def test_slots_of_a_full_queue_are_granted_again_as_by_the_rules(
        self, store: Store, queue: Callable[[], str]
    ) -> None:
        """They are listed in the same hold and in later ones, in time and late, also with other settings."""
        await _compare(store, queue(), slots_of_a_full_queue())

    def test_its_own_clock_is_used_when_none_is_given(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str]
    ) -> None:
        """Readings never go back, and have microsecond resolution: they differ within a millisecond."""
        name = queue()

        async def readings() -> list[Answer]:
            return [await store.apply(name, Advance(settings=_EACH_SECOND, nonce="n")) for _ in range(30)]

        seen = portal.call(readings)
        for earlier, later in pairwise(seen):
            assert later.now + later.blur >= earlier.now - earlier.blur
        assert len({answer.now % 1_000 for answer in seen}) > 3, "the clock has no microseconds"

    def test_no_slot_is_handed_out_twice_to_many_at_once(
        self, portal: BlockingPortal, store: Store, store_url: str, queue: Callable[[], str]
    ) -> None:
        """Eight connections take tickets concurrently: each ticket once, slots an interval apart."""
        name = queue()
        slots: list[rules.Slot] = []
        readings: list[tuple[int, int, int]] = []

        async def take() -> None:
            mine = open_store(store_url) if not store_url.startswith("memory:") else store
            for turn in range(8):
                command = Advance(settings=_EACH_SECOND, nonce=secrets.token_hex(4), take=1 + turn % 3)
                answer = await mine.apply(name, command)
                slots.extend(answer.taken)
                readings.append((answer.taken[0].ticket, answer.now, answer.blur))
            if mine is not store:
                await mine.aclose()

        async def all_at_once() -> None:
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(take)

        portal.call(all_at_once)
        slots.sort(key=lambda slot: slot.ticket)
        assert [slot.ticket for slot in slots] == list(range(1, 8 * (1 + 2 + 3 + 1 + 2 + 3 + 1 + 2) + 1))
        gaps = [later.due - earlier.due for earlier, later in pairwise(slots)]
        assert min(gaps) >= _EACH_SECOND.interval
        for (_, earlier, blur), (_, later, more) in pairwise(sorted(readings)):
            assert later + more >= earlier - blur, "a step read the clock before it was its turn"

    def test_names_lists_what_has_a_record(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str]
    ) -> None:
        """A queue has a name in the store from its first command until it is dropped."""
        one, keyed = queue(), f"{queue()}:key"
        for name in (one, keyed):
            portal.call(store.apply, name, Advance(settings=_EACH_SECOND, nonce="n"))
        names = portal.call(store.names)
        assert {one, keyed} <= set(names)
        assert names == sorted(names)
        portal.call(store.apply, keyed, Drop())
        assert keyed not in portal.call(store.names)

    def test_a_record_outlives_the_connection(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str]
    ) -> None:
        """Closing only releases connections; the store reopens on its own."""
        name = queue()
        portal.call(store.apply, name, Advance(settings=_EACH_SECOND, nonce="n", take=3))
        portal.call(store.aclose)
        answer = portal.call(store.apply, name, Inspect())
        assert answer.state is not None
        assert answer.state.ticket == 3

    @in_portal
    async def test_an_end_of_a_hold_wakes_every_listener(
        self, store: Store, queue: Callable[[], str]
    ) -> None:
        """`resume` and the end of a running job wake all listeners, if the store can push."""
        if not isinstance(store, Waking):
            pytest.skip("this store can't push")
        name = queue()
        limited = Settings(interval=1, max_running=1)
        started = await store.apply(
            name, Advance(settings=limited, nonce="n", take=1, reach=rules.FOREVER // 2, lease=60_000_000)
        )
        assert started.begun == 1
        for release in (
            Finish(generation="n", ended=(1,)),
            Resume(),
        ):
            with anyio.fail_after(20):
                async with store.wakeups(name) as one, store.wakeups(name) as two:
                    assert (await store.apply(name, release)).woken
                    await one()
                    await two()
            await store.apply(name, Hold())

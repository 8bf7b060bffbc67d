"""The conformance suite of stores of ledgers: a store is accepted if it passes these tests.

Random commands compare its answers with the rules; separate tests cover what the rules can't show (concurrent
use, the store's own clock, large values).
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, TypeAlias, TypeVar

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intervalq.ledger.rules import (
    MAX_ROWS,
    MAX_VALUE,
    Answer,
    Beat,
    Cancel,
    Claim,
    Command,
    Count,
    Drop,
    Ended,
    Expire,
    Forget,
    Leave,
    Look,
    MemoryBook,
    Record,
    Release,
    Seen,
    Start,
    Verdict,
    apply,
)
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.testing._ledgers.commands import LedgerCommandSource
from intervalq.testing._suite import Suite, fresh_names, in_portal

T = TypeVar("T")

Call: TypeAlias = tuple[str, int]
"""A row, and the number of the attempt."""

_HOUR = 3_600_000_000
_PATIENCE = 60
"""Seconds until a test that waits for something gives up."""


class LedgerSuite(Suite):
    """Subclass it as `class TestMyStore(LedgerSuite)` with a `store_url` fixture that returns a URL.

    The store may be in use by others: every test works on ledgers of random names and drops them.
    """

    steps = 40
    """The number of commands in each random sequence."""

    rounds = 40
    """How often each of several processes claims and starts rows at the same time."""

    @pytest.fixture
    def store(self, portal: BlockingPortal, store_url: str) -> Iterator[LedgerStore]:
        """The store under test."""
        store = open_ledger_store(store_url)
        yield store
        portal.call(store.aclose)

    @pytest.fixture
    def ledger(self, portal: BlockingPortal, store: LedgerStore) -> Iterator[Callable[[], str]]:
        """Provides names of ledgers that nobody else uses, and drops the ledgers at the end."""
        yield from fresh_names(lambda name: portal.call(store.apply, name, Drop()))

    # --- the rules ----------------------------------------------------------------------------------

    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(seed=st.integers(0, 2**32))
    def test_every_answer_is_that_of_the_rules(
        self, portal: BlockingPortal, store: LedgerStore, seed: int
    ) -> None:
        """Random commands with a given clock: store and rules give the same answers and rows."""
        portal.call(self._sequence, store, seed)

    async def _sequence(self, store: LedgerStore, seed: int) -> None:
        source, model, name = LedgerCommandSource(seed), MemoryBook(), f"suite-{secrets.token_hex(6)}"
        done: list[str] = []
        try:
            for number in range(self.steps):
                command, now = source.next(model)
                done.append(f"{number}: at {now}: {command}")
                context = f"seed {seed}:\n" + "\n".join(done[-8:])
                answer = await store.apply(name, command, now)
                assert answer == apply(model, command, now), context
                if number % 4 == 3:
                    answer = await store.apply(name, Count(), now)
                    assert answer == apply(model, Count(), now), f"{context}\nthen Count"
                    limit = source.random.choice((1, 2, 1_000))
                    seen = await everything(store, name, limit=limit, now=now)
                    there = sorted(apply(model, Look(limit=len(model.rows) + 1), now).rows)
                    assert seen == there, f"{context}\nthen Look"
        finally:
            await store.apply(name, Drop(), source.now)

    # --- what the rules don't show ------------------------------------------------------------------

    @in_portal
    async def test_what_a_run_does(self, store: LedgerStore, ledger: Callable[[], str]) -> None:
        """On the store's own clock: claim, start, record, give back, and the verdicts that sessions get."""
        name = ledger()
        assert not (await store.apply(name, Count())).found
        claimed = await store.apply(name, Claim("me", _HOUR, ("a", "b", "c")))
        assert [verdict.kind for verdict in claimed.verdicts] == ["mine"] * 3
        assert name in await store.names()
        await store.apply(name, Start("me", _HOUR, ("a", "b")))
        kept = await store.apply(
            name, Record("me", _HOUR, (Ended("a", "1"), Ended("b", '"no"', failed=True)))
        )
        assert kept.verdicts == (Verdict("known", 1, "1"), Verdict("known", 1, '"no"', failed=True))
        other = await store.apply(name, Claim("you", _HOUR, ("a", "b", "c", "d")))
        assert [verdict.kind for verdict in other.verdicts] == ["known", "known", "busy", "mine"]
        assert (await store.apply(name, Release("me", ("c", "d", "x")))).removed == 1
        await store.apply(name, Start("you", _HOUR, ("d",)))
        await store.apply(name, Leave("you"))
        asked = await store.apply(name, Claim("me", _HOUR, ("c", "d"), again=False))
        assert [verdict.kind for verdict in asked.verdicts] == ["mine", "unknown"]
        summary = (await store.apply(name, Count())).summary
        assert summary is not None
        assert summary[3:] == (1, 1, 1, 0, 1, 1)
        assert claimed.now <= asked.now < claimed.now + _HOUR
        assert summary.created == claimed.now
        gone = await store.apply(name, Forget(("a", "d"), ("unknown", "done")))
        assert gone.removed == 2
        await store.apply(name, Cancel())
        asked = await store.apply(name, Claim("me", _HOUR, ("a", "b", "c")))
        assert [verdict.kind for verdict in asked.verdicts] == ["busy", "known", "mine"]
        assert asked.cancelled
        assert (await store.apply(name, Drop())).found
        assert not (await store.apply(name, Drop())).found
        assert name not in await store.names()

    @in_portal
    async def test_a_ledger_expires(self, store: LedgerStore, ledger: Callable[[], str]) -> None:
        """On the store's own clock: the ledger exists until it expires, and a new one knows nothing of it."""
        name = ledger()
        row = Record("me", _HOUR, (Ended("a", "1"),))
        now = (await store.apply(name, row)).now
        assert (await store.apply(name, Expire(now + _HOUR))).found
        assert name in await store.names()
        assert (await store.apply(name, Expire(None))).found
        summary = (await store.apply(name, Count())).summary
        assert summary is not None
        assert (summary.expires, summary.done) == (None, 1)
        assert (await store.apply(name, Expire(now - 1_000))).found  # some servers count milliseconds
        assert name not in await store.names()
        assert not (await store.apply(name, Count())).found
        assert (await store.apply(name, Claim("me", _HOUR, ("a",)))).verdicts == (Verdict("mine", 1),)
        summary = (await store.apply(name, Count())).summary
        assert summary is not None
        assert (summary.expires, summary.done, summary.claimed) == (None, 0, 1)

    @in_portal
    async def test_as_much_as_may_be(self, store: LedgerStore, ledger: Callable[[], str]) -> None:
        """The longest value and key, and the most rows in one command, with characters of all lengths."""
        name = ledger()
        value = "ü" * (MAX_VALUE // 2)
        large = Record("me", _HOUR, (Ended("\U0001f511" * 512, value),))
        assert (await store.apply(name, large)).verdicts == (Verdict("known", 1, value),)
        known = await store.apply(name, Claim("you", _HOUR, ("\U0001f511" * 512,)))
        assert known.verdicts == (Verdict("known", 1, value),)
        await store.apply(name, Drop())
        keys = tuple(f"{number:04} é" for number in range(MAX_ROWS))
        claimed = await store.apply(name, Claim("me", _HOUR, keys))
        assert claimed.verdicts == (Verdict("mine", 1),) * MAX_ROWS
        ends = tuple(Ended(key, str(number)) for number, key in enumerate(keys))
        recorded = await store.apply(name, Record("me", _HOUR, ends))
        assert recorded.verdicts == tuple(Verdict("known", 1, str(number)) for number in range(MAX_ROWS))
        seen = await everything(store, name, limit=300)
        assert [(row.key, row.shown, row.value) for row in seen] == [
            (key, "done", str(number)) for number, key in enumerate(keys)
        ]
        assert (await store.apply(name, Forget(keys, ("done",)))).removed == MAX_ROWS
        assert await everything(store, name) == []

    @in_portal
    async def test_rows_that_end_while_they_are_listed_are_in_the_list(
        self, store: LedgerStore, ledger: Callable[[], str]
    ) -> None:
        """A row that exists all the time is in one of the pages."""
        name = ledger()
        keys = [f"k{number:02}" for number in range(60)]
        await store.apply(name, Claim("s", _HOUR, tuple(keys)))
        await store.apply(name, Record("s", _HOUR, tuple(Ended(key, "") for key in keys[::2])))
        rest = keys[1::2]
        seen: set[str] = set()
        look = Look(limit=7)
        while True:
            answer = await store.apply(name, look)
            seen |= {row.key for row in answer.rows}
            if not answer.cursor:
                break
            ends = [rest.pop(which) for which in (0, -1) if rest]
            await store.apply(name, Record("s", _HOUR, tuple(Ended(key, "") for key in ends)))
            look = Look(answer.cursor, 7)
        assert seen == set(keys)

    def test_who_is_alone_in_having_a_row(
        self, store_url: str, portal: BlockingPortal, store: LedgerStore, ledger: Callable[[], str]
    ) -> None:
        """Six sessions concurrently claim the same rows, each in its own order, and record those they got."""
        name = ledger()
        keys = [f"k{number}" for number in range(60)]
        ready = threading.Barrier(6, timeout=_PATIENCE)

        async def work(number: int) -> list[str]:
            mine = open_ledger_store(store_url)
            try:
                session = f"s{number}"
                await mine.apply(name, Beat(session, _HOUR))
                ready.wait()
                got: list[str] = []
                order = keys[number * 10 :] + keys[: number * 10]
                order = order[::-1] if number % 2 else order
                for first in range(0, len(order), 15):
                    asked = tuple(order[first : first + 15])
                    answer = await mine.apply(name, Claim(session, _HOUR, asked))
                    took = [
                        key
                        for key, verdict in zip(asked, answer.verdicts, strict=True)
                        if verdict.kind == "mine"
                    ]
                    got += took
                    await mine.apply(name, Record(session, _HOUR, tuple(Ended(key, session) for key in took)))
                return got
            finally:
                await mine.aclose()

        shares = at_once([lambda number=number: work(number) for number in range(6)])  # type: ignore[misc]
        assert Counter(key for share in shares for key in share) == Counter(keys)
        summary = portal.call(store.apply, name, Count()).summary
        assert summary is not None
        assert summary[3:] == (60, 0, 0, 0, 0, 6)
        owners = {key: f"s{number}" for number, share in enumerate(shares) for key in share}
        assert {row.key: row.value for row in portal.call(everything, store, name)} == owners

    def test_a_row_that_was_started_is_not_taken_by_who_must_not(
        self, store_url: str, ledger: Callable[[], str]
    ) -> None:
        """Five sessions that may lapse at any moment: a row that one has started, no other can start."""
        name = ledger()
        ready = threading.Barrier(5, timeout=_PATIENCE)

        async def work(number: int) -> tuple[set[Call], set[Call]]:
            mine, session = open_ledger_store(store_url), f"s{number}"
            dice = Random(number)  # noqa: S311 - repeatable
            claimed: set[Call] = set()
            started: set[Call] = set()
            try:
                await mine.apply(name, Beat(session, 1))
                ready.wait()
                for turn in range(self.rounds):
                    keys = tuple(dice.sample([f"{turn // 4} {letter}" for letter in "abc"], 3))
                    expiry = dice.choice((1, 300, 1_000))  # microseconds
                    answer = await mine.apply(name, Claim(session, expiry, keys, again=False))
                    claimed |= _mine(keys, answer)
                    started |= _mine(keys, await mine.apply(name, Start(session, expiry, keys)))
                return claimed, started
            finally:
                await mine.aclose()

        found = at_once([lambda number=number: work(number) for number in range(5)])  # type: ignore[misc]
        called = Counter(call for _, started in found for call in started)
        assert called, "nothing was started"
        assert all(started <= claimed for claimed, started in found), "one has started what it didn't have"
        assert max(called.values()) == 1, "two have started the same attempt"
        taken = {call for claimed, _ in found for call in claimed}
        assert not [key for key, attempt in called if (key, attempt + 1) in taken]

    @in_portal
    async def test_a_cancelled_call_leaves_the_store_in_order(
        self, store: LedgerStore, ledger: Callable[[], str]
    ) -> None:
        """Each answer belongs to the command that was sent, whatever was given up meanwhile."""
        name = ledger()
        for turn in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.apply(name, Record("me", _HOUR, (Ended(f"given up {turn}", "0"),)))
            recorded = await store.apply(name, Record("me", _HOUR, (Ended(f"k{turn}", str(turn)),)))
            assert recorded.verdicts == (Verdict("known", 1, str(turn)),)


def _mine(keys: tuple[str, ...], answer: Answer) -> set[Call]:
    """The rows that the answer gives to the caller."""
    pairs = zip(keys, answer.verdicts, strict=True)
    return {(key, verdict.attempt) for key, verdict in pairs if verdict.kind == "mine"}


async def everything(
    store: LedgerStore, ledger: str, *, limit: int = 1_000, now: int | None = None
) -> list[Seen]:
    """All rows of a ledger, sorted, from as many pages as there are."""
    found: dict[str, Seen] = {}
    command: Command = Look(limit=limit)
    while True:
        answer: Answer = await store.apply(ledger, command, now)
        found.update((row.key, row) for row in answer.rows)
        if not answer.cursor:
            return sorted(found.values())
        command = Look(answer.cursor, limit)


def at_once(jobs: list[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """The results of these functions, each run in a thread with an event loop of its own."""

    async def run(job: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with anyio.fail_after(_PATIENCE):
            return await job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        return [future.result() for future in [threads.submit(anyio.run, run, job) for job in jobs]]

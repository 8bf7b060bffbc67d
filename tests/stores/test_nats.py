"""Queues on NATS: the conformance suite, and many concurrent writers."""

from __future__ import annotations

import secrets
from dataclasses import replace
from random import Random
from typing import Any

import anyio
import pytest

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    HighWaterMark,
    Hold,
    Inspect,
    Reclaim,
    Resume,
    Settings,
    Slot,
    State,
)
from intervalq.testing import StoreSuite
from intervalq_stores.nats._queue import stream as nats_queue_stream
from intervalq_stores.nats._queue.log import fold
from intervalq_stores.nats._queue.step import BEGIN
from intervalq_stores.nats.queues import NATSStore
from stores import nats_queues
from stores.nats_queues import (
    HOURLY,
    NOW,
    QUICK,
    Open,
    fresh,
    history,
    log_of,
    plain_ones,
    take,
)

opened = nats_queues.opened


class TestNATSStore(StoreSuite):
    @pytest.fixture
    def store_url(self, nats_url: str) -> str:
        return nats_url


class Writer:
    """A simulated shard that knows what its own store told it, and does what a shard might do next."""

    def __init__(self, store: NATSStore, random: Random) -> None:
        self.store = store
        self.random = random
        self.state: State | None = None
        self.slots: list[Slot] = []

    def next(self) -> Command:
        random, state = self.random, self.state
        common: dict[str, Any] = {"settings": QUICK, "nonce": secrets.token_hex(4)}
        if state is None:
            return Advance(**common, take=3, reach=random.choice((0, 2_000)))
        common["generation"] = state.generation
        kind = random.random()
        if kind < 0.04:
            return random.choice(
                (Hold(**common, length=random.choice((500, FOREVER))), Resume(**common), Reclaim(**common),
                 Configure(**common, interval=random.choice((1_000, 2_000))), Drop(**common))
            )  # fmt: skip
        if kind < 0.1:
            return Resume(**common)
        used, self.slots = self.slots[:2], self.slots[2:]
        release = tuple(self.slots[-1:]) if random.random() < 0.05 else ()
        mark = HighWaterMark(state.ticket, state.due, state.late_total)
        more: dict[str, Any] = {"take": random.choice((0, 1, 2, 5)), "reach": random.choice((0, 3_000))}
        more["costs"] = random.choice(((), (), (3, 1)))
        more["error"] = random.choice((0, 0, 0, 50))
        if random.random() < 0.5:
            more |= {"until": FOREVER, "notice": random.choice((0, 200))}
        return Advance(**common, slots=tuple(used), release=release, high_water_mark=mark, **more)

    async def step(self, queue: str, now: int) -> Answer:
        answer = await self.store.apply(queue, self.next(), now)
        if answer.state is None or self.state is None or answer.state.generation != self.state.generation:
            self.slots.clear()
        self.state = answer.state
        self.slots += answer.taken[answer.begun :]
        return answer


@pytest.mark.parametrize("seed", range(5))
async def test_writers_that_get_in_each_others_way_agree(nats_url: str, opened: Open, seed: int) -> None:
    """Every answer is that of the rules at its place in the log; no writer gets another's ticket."""
    random, queue, now = Random(seed), fresh(), NOW
    writers = [Writer(opened(nats_url), random) for _ in range(5)]
    reported: list[tuple[str, int]] = []
    for _ in range(40):
        now += random.choice((0, 1, 300, 2_000))
        some = random.sample(writers, random.randint(1, 5))
        answers: list[Answer] = []

        async def step(writer: Writer, at: int, answers: list[Answer] = answers) -> None:
            answers.append(await writer.step(queue, at))

        async with anyio.create_task_group() as group:
            for writer in some:
                group.start_soon(step, writer, now)
        reported += [
            (answer.state.generation, slot.ticket)
            for answer in answers
            for slot in answer.taken
            if answer.state is not None
        ]
        looks = [await writer.store.apply(queue, Inspect(), now) for writer in writers]
        assert all(look == looks[0] for look in looks), "all come to the same record"
    assert len(reported) == len(set(reported)), "each ticket once"
    assert len(reported) > 50
    await writers[0].store.apply(queue, Drop(), now)


async def test_the_log_is_what_the_rules_did(nats_url: str, opened: Open) -> None:
    """With eight writers at once, each command is one plain message, and each answer is the rules' own."""
    queue, stores = fresh(), [opened(nats_url) for _ in range(8)]
    first = await stores[0].apply(queue, take(QUICK, take=1_000), NOW)
    assert first.state is not None
    got: list[Answer] = []

    async def work(store: NATSStore) -> None:
        await store.apply(queue, take(QUICK), NOW)
        got.extend([await store.apply(queue, take(QUICK, reach=FOREVER // 2), NOW) for _ in range(12)])

    async with anyio.create_task_group() as group:
        for store in stores:
            group.start_soon(work, store)
    log = await log_of(stores[0], queue)
    assert len(log) == 1 + 8 * 13
    assert plain_ones(log) >= 8 * 12, "nothing was sent twice, or in full"
    model: State | None = None
    answers: dict[int, Answer] = {}
    for number, entry in enumerate(log):
        _, outcome = fold(BEGIN, log[: number + 1], nats_url)
        assert isinstance(outcome, Answer)
        command = (
            take(QUICK, take=entry.step.take, reach=entry.step.reach)
            if hasattr(entry.step, "take")
            else entry.step.command
        )
        model, expected = rules.apply(model, command, NOW)
        if outcome.first is not None:
            answers[outcome.first.ticket] = outcome
        assert replace(outcome, state=None) == replace(expected, state=None)
        assert outcome.state == model
    for answer in got:
        assert answer.first is not None
        assert answer.taken == answers[answer.first.ticket].taken
        assert answer.begun == answers[answer.first.ticket].begun
    await stores[0].apply(queue, Drop())


async def test_one_that_slept_for_longer_than_the_log_is_kept(nats_url: str, opened: Open) -> None:
    queue, awake, asleep = fresh(), opened(nats_url), opened(nats_url)
    await awake.apply(queue, take(take=2), NOW)
    slept = await asleep.apply(queue, take(), NOW)
    assert slept.state is not None
    count = nats_queue_stream.KEPT + 100
    for _ in range(count // 50):
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(awake.apply, queue, take(), NOW)
    await awake.apply(queue, Hold(), NOW)
    for store in (asleep, opened(nats_url)):
        answer = await store.apply(queue, Inspect(), NOW)
        assert answer.state is not None
        assert (answer.state.generation, answer.state.ticket) == (
            slept.state.generation,
            3 + count // 50 * 50,
        )
    assert (await asleep.apply(queue, take(generation=slept.state.generation), NOW)).count == 0, "it is held"
    assert (await asleep.apply(queue, Resume(), NOW)).woken
    await awake.apply(queue, Drop())


async def test_a_late_grant_is_heard_of_by_all(nats_url: str, opened: Open) -> None:
    """A late grant counts from the time at which it was stored; whoever writes next learns of it."""
    queue, one, other = fresh(), opened(nats_url), opened(nats_url)
    settings, notice = Settings(1), HOURLY.interval
    taken = await one.apply(queue, take(settings, nonce="g", take=2))
    await other.apply(queue, take(settings, generation="g", take=2_000, reach=0, notice=60_000_000))
    slot, mark = taken.taken[1], HighWaterMark(2, taken.taken[1].due)
    asked = Advance(generation="g", slots=(slot,), until=FOREVER, notice=notice, high_water_mark=mark, take=1)
    late = await one.apply(queue, asked)
    assert (late.granted, late.at_once) == ((2,), True)
    assert late.state is not None
    assert late.state.late_total == late.now + notice - slot.due > notice
    last = await history(one).last(queue)
    assert last is not None
    assert (last.at, plain_ones([last])) == (late.now, 0)
    heard = await other.apply(queue, take(settings, generation="g"))
    assert heard.state is not None
    assert heard.state.late_total == late.state.late_total
    assert plain_ones(await log_of(other, queue)) == 1, "it was not sent twice"
    again = await one.apply(queue, asked)
    assert (again.granted, again.at_once) == ((2,), False), "in time by now: a copy holds nothing"
    assert again.state is not None
    assert again.state.late_total == late.state.late_total
    await one.apply(queue, Drop())


async def test_no_slot_is_taken_that_was_over_long_ago(nats_url: str, opened: Open) -> None:
    """Tickets were revoked unnoticed; a plain increment behind them would be granted late, and delay all."""
    queue, one, asleep = fresh(), opened(nats_url), opened(nats_url)
    await one.apply(queue, take(nonce="g", take=9, reach=0), NOW)
    await asleep.apply(queue, take(generation="g"), NOW)
    later = NOW + 5 * HOURLY.interval
    await one.apply(queue, Reclaim(), later)
    answer = await asleep.apply(queue, take(generation="g", take=2), later)
    assert (answer.first, answer.count) == (Slot(13, later), 2)
    log = await log_of(one, queue)
    _, answer_to_plain = fold(BEGIN, log[:4], nats_url)
    assert isinstance(answer_to_plain, Answer)
    assert answer_to_plain.first == Slot(11, NOW + HOURLY.interval)
    assert log[-1].step.command.release == answer_to_plain.taken
    assert (await one.apply(queue, Inspect(), later)).state == answer.state
    await one.apply(queue, Drop())

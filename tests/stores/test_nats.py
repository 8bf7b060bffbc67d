from __future__ import annotations

import json
import re
import secrets
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random
from typing import Any

import anyio
import pytest

from faults.proxy import Fault, proxied
from intervalq import errors, rules
from intervalq.rules import (
    FOREVER,
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    Finish,
    Hold,
    Inspect,
    Mark,
    Reclaim,
    Resume,
    Settings,
    Slot,
    State,
)
from intervalq.testing import StoreSuite
from intervalq_stores import _nats_history, _nats_wire
from intervalq_stores._nats_log import fold
from intervalq_stores._nats_step import BEGIN, ONE, TOLD, Plain, fingerprint
from intervalq_stores.nats import NATSStore
from servers import Server

HOURLY = Settings(interval=3_600_000_000)
QUICK = Settings(interval=1_000)
NOW = 1_000_000_000_000_000
CANARY = "c4n4ry"
LOG = "intervalq.log."
STATE = "intervalq.state."
Open = Callable[[str], NATSStore]


class TestNATSStore(StoreSuite):
    @pytest.fixture
    def store_url(self, nats_url: str) -> str:
        return nats_url


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens stores, and closes them at the end."""
    stores: list[NATSStore] = []

    def open_one(url: str) -> NATSStore:
        stores.append(NATSStore(url))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()


def fresh() -> str:
    return f"n{secrets.token_hex(8)}"


def take(settings: Settings = HOURLY, **more: Any) -> Advance:
    return Advance(**{"settings": settings, "nonce": secrets.token_hex(4), "take": 1, **more})


def history(store: NATSStore) -> _nats_history.History:
    return store._history


async def log_of(store: NATSStore, queue: str) -> list[Any]:
    last = await history(store).last(queue)
    return [] if last is None else await history(store).tail(queue, last.sequence)


async def purge(store: NATSStore, stream: str, **which: Any) -> None:
    await history(store).wire.ask(f"STREAM.PURGE.{stream}", which)


def plain_ones(log: list[Any]) -> int:
    return sum(isinstance(entry.step, Plain) for entry in log)


# --- many writers -----------------------------------------------------------------------------------


class Writer:
    """A shard that knows what its own store told it, and does what a shard might do next."""

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
        mark = Mark(state.ticket, state.due, state.late_total)
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
    """Every answer is that of the rules at its place in the log; nobody is told another's ticket."""
    random, queue, now = Random(seed), fresh(), NOW
    writers = [Writer(opened(nats_url), random) for _ in range(5)]
    told: list[tuple[str, int]] = []
    for _ in range(40):
        now += random.choice((0, 1, 300, 2_000))
        some = random.sample(writers, random.randint(1, 5))
        answers: list[Answer] = []

        async def step(writer: Writer, at: int, answers: list[Answer] = answers) -> None:
            answers.append(await writer.step(queue, at))

        async with anyio.create_task_group() as group:
            for writer in some:
                group.start_soon(step, writer, now)
        told += [
            (answer.state.generation, slot.ticket)
            for answer in answers
            for slot in answer.taken
            if answer.state is not None
        ]
        looks = [await writer.store.apply(queue, Inspect(), now) for writer in writers]
        assert all(look == looks[0] for look in looks), "all come to the same record"
    assert len(told) == len(set(told)), "each ticket once"
    assert len(told) > 50
    await writers[0].store.apply(queue, Drop(), now)


async def test_the_log_is_what_the_rules_did(nats_url: str, opened: Open) -> None:
    """Eight at the same time, in a backlog: one message each, plain, and each answer is the rules' own."""
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
    count = _nats_history.KEPT + 100
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
    """It is counted from the instant at which it was stored; whoever writes next learns of it."""
    queue, one, other = fresh(), opened(nats_url), opened(nats_url)
    settings, notice = Settings(1), HOURLY.interval
    taken = await one.apply(queue, take(settings, nonce="g", take=2))
    await other.apply(queue, take(settings, generation="g", take=2_000, reach=0, notice=60_000_000))
    slot, mark = taken.taken[1], Mark(2, taken.taken[1].due)
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
    """Tickets were revoked unheard: a plain increment behind them would be granted late, and hold all."""
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


# --- what is sent, and what is kept -----------------------------------------------------------------


async def test_a_backlog_costs_one_message_a_command(nats_url: str, opened: Open) -> None:
    """Nothing is read, whatever others do meanwhile; but now and then to know the server's clock."""
    queue, other = fresh(), opened(nats_url)
    async with proxied(nats_url) as proxy:
        store = opened(proxy.url)
        await store.apply(queue, take(take=5), NOW)
        await other.apply(queue, take(), NOW)
        await store.apply(queue, take(), NOW)
        proxy.asked.clear()
        for number in range(20):
            await other.apply(queue, take(take=2), NOW)
            answer = await store.apply(queue, take(), NOW)
            assert answer.first is not None
            assert answer.first.ticket == 10 + 3 * number
        asked = b"".join(data for _, data in proxy.asked)
        assert asked.count(b"HPUB ") == 20
        assert b"DIRECT.GET" not in asked
        proxy.asked.clear()
        for _ in range(50):
            await store.apply(queue, take())
        asked = b"".join(data for _, data in proxy.asked)
        assert asked.count(b"DIRECT.GET.intervalq-log") < 25, "the clock, and what it takes to get there"
        await store.aclose()
    await other.apply(queue, Drop())


async def test_an_answer_says_how_well_it_knows_when_it_was(nats_url: str, opened: Open) -> None:
    queue, stores = fresh(), [opened(nats_url) for _ in range(2)]
    answers: list[tuple[int, int]] = []
    for number in range(120):
        answer = await stores[number % 2].apply(queue, take())
        answers.append((answer.now, answer.blur))
        assert answer.trip is not None
        assert answer.blur <= 2 * (answer.trip[1] - answer.trip[0]) + 5_000
    for entry, (now, blur) in zip(await log_of(stores[0], queue), answers, strict=True):
        assert abs(entry.at - now) <= blur + 1
    assert sum(blur > 0 for _, blur in answers) > 50
    assert sum(blur == 0 for _, blur in answers) >= 2
    await stores[0].apply(queue, Drop())


async def test_a_lost_acknowledgement_is_asked_for_again(
    nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has stored the command, and says so to whoever sends it again: it is done once."""
    monkeypatch.setattr(_nats_wire, "_AGAIN", 0.05)
    queue = fresh()
    async with proxied(nats_url) as proxy:
        store = opened(proxy.url)
        await store.apply(queue, take(take=3), NOW)
        commands: list[Command] = [take(), Hold(length=5), Resume(), take(slots=())]
        for number, command in enumerate(commands, 1):
            await proxy.begin(Fault.SWALLOW, once=True)
            answer = await store.apply(queue, command, NOW)
            assert proxy.hits == 1
            assert answer.state is not None
            assert len(await log_of(store, queue)) == 1 + number
        assert answer.first == Slot(5, NOW + 4 * HOURLY.interval)
        assert await store.apply(queue, Inspect(), NOW) == replace(
            rules.apply(answer.state, Inspect(), NOW)[1], trip=None
        )
        await store.apply(queue, Drop())
        await store.aclose()


async def test_no_answer_at_all(nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout, and the next call has a connection of its own."""
    monkeypatch.setattr(_nats_wire, "WITHIN", 0.1)
    queue = fresh()
    async with proxied(nats_url) as proxy:
        store = opened(proxy.url)
        await store.apply(queue, take(), NOW)
        for command in (take(), Inspect(), Hold()):
            await proxy.begin(Fault.BLACK_HOLE)
            with pytest.raises(errors.StoreTimeout):
                await store.apply(queue, command, NOW)
            await proxy.heal()
            monkeypatch.setattr(_nats_wire, "WITHIN", 5)
            await store.apply(queue, Resume(), NOW)
            monkeypatch.setattr(_nats_wire, "WITHIN", 0.1)
        await store.aclose()
    monkeypatch.setattr(_nats_wire, "WITHIN", 5)
    await opened(nats_url).apply(queue, Drop())


async def test_a_message_that_comes_again_after_the_server_forgot_it(
    own_nats: Callable[..., Server], opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a window for duplicates that is shorter than the patience: slots go unused, none is used twice."""
    monkeypatch.setattr(_nats_wire, "_AGAIN", 0.3)
    server = own_nats()
    store = opened(server.url)
    made = await history(store).streams()
    made[0]["duplicate_window"] = 100_000_000
    await history(store).wire.ask("STREAM.UPDATE.intervalq-log", made[0])
    async with proxied(server.url) as proxy:
        bad = opened(proxy.url)
        await bad.apply("q", take(take=3), NOW)
        tickets: list[int] = []
        for _ in range(3):
            await proxy.begin(Fault.SWALLOW, once=True)
            tickets += [slot.ticket for slot in (await bad.apply("q", take(), NOW)).taken]
            tickets += [slot.ticket for slot in (await store.apply("q", take(), NOW)).taken]
        await bad.aclose()
    assert tickets == [5, 6, 8, 9, 11, 12]


async def test_checkpoints(nats_url: str, opened: Open) -> None:
    """Whoever writes the entry whose number says so keeps what they come to; a newcomer reads little."""
    queue, stores = fresh(), [opened(nats_url) for _ in range(3)]
    for number in range(150):
        await stores[number % 3].apply(queue, take(), NOW)
    for store in stores:
        await store.aclose()  # which waits for what is still under way
    kept = await history(stores[0]).checkpoint(queue)
    log = await log_of(stores[0], queue)
    assert kept is not None
    assert kept.position == fold(BEGIN, log[:128], nats_url)[0]
    async with proxied(nats_url) as proxy:
        newcomer = opened(proxy.url)
        answer = await newcomer.apply(queue, take(), NOW)
        assert answer.first is not None
        assert answer.first.ticket == 151
        assert proxy.answers < 40
        await newcomer.aclose()
    await stores[0].apply(queue, Drop())
    assert await history(stores[0]).checkpoint(queue) is None


async def test_an_older_checkpoint_takes_no_place_of_a_later_one(nats_url: str, opened: Open) -> None:
    queue, store = fresh(), opened(nats_url)
    for _ in range(10):
        await store.apply(queue, take(), NOW)
    log = await log_of(store, queue)
    early, late = [fold(BEGIN, log[:end], nats_url)[0] for end in (5, 9)]
    book = history(store)
    await book.save(queue, late, None)
    kept = await book.checkpoint(queue)
    for before in (kept, None):
        await book.save(queue, early, before)
        assert await book.checkpoint(queue) == kept
    dead = early._replace(value=1, sequence=log[-1].sequence + 9_000)  # of a stream that was removed
    await purge(store, "intervalq-state", filter=STATE + queue)
    await book.save(queue, dead, None)
    await book.save(queue, early, await book.checkpoint(queue))
    kept = await book.checkpoint(queue)
    assert kept is not None
    assert kept.position == early
    await store.apply(queue, Drop())


async def test_nothing_of_a_checkpoint_is_believed_that_does_not_fit_the_log(
    nats_url: str, opened: Open
) -> None:
    queue, store = fresh(), opened(nats_url)
    await store.apply(queue, take(), NOW)
    answer = await store.apply(queue, take(take=4), NOW)
    position = fold(BEGIN, await log_of(store, queue), nats_url)[0]
    assert position.state is not None
    wrong = replace(position.state, ticket=99)
    for value, sequence in ((position.value + 1, position.sequence), (5 * ONE, 1), (ONE, position.sequence)):
        await purge(store, "intervalq-state", filter=STATE + queue)
        await history(store).save(queue, position._replace(state=wrong, value=value, sequence=sequence), None)
        newcomer = opened(nats_url)
        assert (await newcomer.apply(queue, Inspect(), NOW)).state == answer.state
    await store.apply(queue, Drop())


async def test_a_dropped_queue_leaves_nothing_in_the_end(
    nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, store, other = fresh(), opened(nats_url), opened(nats_url)
    for _ in range(70):
        await store.apply(queue, take(), NOW)
    await other.apply(queue, Drop())
    assert len(await log_of(store, queue)) == 1
    assert queue not in await store.names()
    answer = await store.apply(queue, take(), NOW)
    assert answer.first == Slot(1, NOW), "one that knew it before makes a new one"
    await store.apply(queue, Drop())
    monkeypatch.setattr(rules, "IDLE_KEPT", -(10**9))
    assert queue not in await store.names()
    assert await log_of(store, queue) == []
    for settings_less in (Advance(take=1, nonce="n"), Hold(), Drop()):
        assert (await opened(nats_url).apply(queue, settings_less)).state is None
    assert await log_of(store, queue) == [], "what makes nothing writes nothing"


@pytest.mark.parametrize("by", ["names", "tidying"])
async def test_idle_keyed_queues_are_forgotten(
    own_nats: Callable[..., Server], opened: Open, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    store = opened(own_nats().url)
    keyed = Settings(interval=1, ephemeral=True)
    for number in range(70):
        await store.apply(f"a:{number}", take(keyed))
    await store.apply("stays", take(HOURLY))
    monkeypatch.setattr(rules, "IDLE_KEPT", -(10**8))
    if by == "names":
        assert await store.names() == ["stays"]
    for _ in range(2 * 64):
        await store.apply("stays", take(HOURLY, attach=True))
        await store.aclose()  # which waits for what it does beside
    assert await history(store).tokens() == ["stays"]


async def test_names_come_in_pages(nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store, queues = opened(nats_url), sorted(fresh() for _ in range(5))
    for queue in queues:
        await store.apply(queue, take())
    ask = history(store).wire.ask

    async def paged(subject: str, body: Any = None) -> Any:
        said = await ask(subject, None if body is None else {k: v for k, v in body.items() if k != "offset"})
        if body is not None and "offset" in body:
            all_of_them = sorted(said["state"]["subjects"])
            some = all_of_them[body["offset"] : body["offset"] + 3]
            said |= {"total": len(all_of_them), "state": {"subjects": dict.fromkeys(some, 1)}}
        return said

    monkeypatch.setattr(history(store).wire, "ask", paged)
    assert set(queues) <= set(await store.names())
    monkeypatch.undo()
    for queue in queues:
        await store.apply(queue, Drop())


async def test_a_log_that_was_begun_anew_needs_nothing_from_before(nats_url: str, opened: Open) -> None:
    """Nor a checkpoint; and whoever begins it anew waits for a quiet interval, as its beginning is gone."""
    queue, store, newcomer = fresh(), opened(nats_url), opened(nats_url)
    for _ in range(3):
        await store.apply(queue, take(), NOW)
    last = await history(store).last(queue)
    assert last is not None
    await purge(store, "intervalq-log", filter=LOG + queue, seq=last.sequence)
    assert (await newcomer.apply(queue, Inspect(), NOW)).state is None
    answer = await newcomer.apply(queue, take(), NOW)
    assert answer.first == Slot(1, NOW + HOURLY.interval)
    await newcomer.aclose()
    await purge(store, "intervalq-state", filter=STATE + queue)
    for one in (store, opened(nats_url)):
        assert (await one.apply(queue, Inspect(), NOW)).state == answer.state
    await store.apply(queue, Drop())


async def test_writes_that_were_lost_again(nats_url: str, opened: Open) -> None:
    """As after a crash of the machine: the sum goes back, then on, and no answer is made of what is gone."""
    queue, one, two = fresh(), opened(nats_url), opened(nats_url)
    await one.apply(queue, take(take=3, nonce="g"), NOW)
    await two.apply(queue, take(), NOW)
    await one.apply(queue, take(), NOW)
    assert (await one.apply(queue, take(take=500), NOW)).count == 500
    last = await history(one).last(queue)
    assert last is not None
    await history(one).wire.ask("STREAM.MSG.DELETE.intervalq-log", {"seq": last.sequence})
    for number in (6, 7):
        answer = await two.apply(queue, take(), NOW)
        assert answer.first is not None
        assert answer.first.ticket == number
    answer = await one.apply(queue, take(), NOW)
    assert answer.first == Slot(8, NOW + 7 * HOURLY.interval)
    look = await opened(nats_url).apply(queue, Inspect(), NOW)
    assert look.state == answer.state
    mark = Mark(505, NOW + 504 * HOURLY.interval)
    healed = await one.apply(queue, take(generation="g", high_water_mark=mark), NOW)
    assert healed.healed
    assert healed.first == Slot(506, NOW + 505 * HOURLY.interval)
    await one.apply(queue, Drop())


# --- trouble ----------------------------------------------------------------------------------------


def by_hand(step: str, increment: int = ONE) -> dict[str, str]:
    return {"Nats-Incr": f"+{increment}", "Iq-Step": step}


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Nats-Incr": "+1"}, errors.CorruptState),
        (by_hand("theirs"), errors.CorruptState),
        (by_hand('{"v":1,"op":"fly"}'), errors.CorruptState),
        (by_hand(f"[1,{NOW},1,0,null,[]]", ONE), errors.CorruptState),
        (by_hand('{"v":3,"op":"fly"}'), errors.VersionMismatch),
    ],
)
async def test_what_is_not_ours_in_a_log_is_left_as_it_is(
    nats_url: str, opened: Open, headers: dict[str, str], error: type[errors.StoreError]
) -> None:
    queue, store = fresh(), opened(nats_url)
    await store.apply(queue, take(), NOW)
    await history(store).wire.publish(LOG + queue, headers)
    for one in (store, opened(nats_url)):
        for command in (Inspect(), Hold(), take()):
            with pytest.raises(error) as raised:
                await one.apply(queue, command, NOW)
            assert queue in str(raised.value)
    assert queue in await store.names()
    await purge(store, "intervalq-log", filter=LOG + queue)
    answer = await store.apply(queue, take(generation="g"), NOW)
    assert answer.first == Slot(1, NOW + HOURLY.interval), "the remedy it tells"
    await store.apply(queue, Drop())


async def test_a_broken_or_newer_checkpoint(nats_url: str, opened: Open) -> None:
    queue, store = fresh(), opened(nats_url)
    for _ in range(130):
        await store.apply(queue, take(), NOW)
    await store.aclose()
    kept = await history(store).checkpoint(queue)
    assert kept is not None
    assert kept.position.state is not None
    good: dict[str, Any] = {"v": 1, "state": kept.position.state.to_dict(), "value": "7", "sequence": 3}
    broken: list[tuple[Any, type[errors.StoreError]]] = [
        ({**good, "v": 2}, errors.VersionMismatch),
        ({**good, "state": {**good["state"], "version": rules.LAYOUT + 1}}, errors.VersionMismatch),
        ({**good, "state": {**good["state"], "ticket": -1}}, errors.CorruptState),
        ({**good, "value": "x"}, errors.CorruptState),
        ({"v": 1}, errors.CorruptState),
        ([], errors.CorruptState),
    ]
    for said, error in broken:
        await history(store).wire.publish(STATE + queue, {}, json.dumps(said).encode())
        with pytest.raises(error, match=queue):
            await opened(nats_url).apply(queue, Inspect(), NOW)
    await purge(store, "intervalq-state", filter=STATE + queue)
    await store.apply(queue, Drop())


async def test_what_was_written_in_layout_1(nats_url: str, opened: Open) -> None:
    """A checkpoint, and entries behind it: the queue goes on from there, and is kept in layout 2."""
    queue, store = fresh(), opened(nats_url)
    await store.apply(queue, take(nonce="g", take=3), NOW)
    await store.apply(queue, take(), NOW)
    position, _ = fold(BEGIN, await log_of(store, queue), nats_url)
    assert position.state is not None
    record = position.state.to_dict()
    for name in ("late", "error", "error_until"):
        del record[name]
    kept = {"v": 1, "state": {**record, "version": 1}, "value": str(position.value)}
    said = json.dumps({**kept, "sequence": position.sequence}).encode()
    await history(store).wire.publish(STATE + queue, {}, said)
    plain_one = by_hand(f'[1,{NOW},2,0,"g",[[2,{NOW}]]]', ONE + TOLD + 2)
    text = f'{{"v":1,"op":"advance","generation":"g","take":1,"mark":[6,5],"now":{NOW}}}'
    full_one = by_hand(text, fingerprint(9))
    for headers in (plain_one, full_one):
        await history(store).wire.publish(LOG + queue, headers)
    await purge(store, "intervalq-log", filter=LOG + queue, seq=position.sequence + 1)
    newcomer = opened(nats_url)
    for number in range(64):
        answer = await newcomer.apply(queue, take(generation="g"), NOW)
        assert answer.first == Slot(8 + number, NOW + (7 + number) * HOURLY.interval)
    assert answer.state is not None
    assert (answer.state.generation, answer.state.current) == ("g", 2)
    await newcomer.aclose()
    checkpoint = await history(store).checkpoint(queue)
    assert checkpoint is not None
    assert checkpoint.position.sequence > position.sequence
    await store.apply(queue, Drop())


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_stream_that_does_not_count(own_nats: Callable[..., Server], opened: Open, when: str) -> None:
    """As an old server makes it, that knows nothing of counters; nothing is stored there."""
    store = opened(own_nats().url)
    plain_stream = {"name": "intervalq-log", "subjects": [f"{LOG}*"], "allow_direct": True}
    if when == "meanwhile":
        await store.apply("q", take(), NOW)
        await history(store).wire.ask("STREAM.DELETE.intervalq-log")
    await history(store).wire.ask("STREAM.CREATE.intervalq-log", plain_stream)
    with pytest.raises(errors.StoreError, match=re.escape("2.14 or newer")) as raised:
        await store.apply("q", take(), NOW)
    assert isinstance(raised.value, errors.UnsupportedOperation) == (when == "before")
    assert not isinstance(raised.value, errors.StoreUnavailable)
    said = await history(store).wire.ask("STREAM.INFO.intervalq-log")
    assert said["state"]["messages"] == 0


async def test_an_acknowledgement_without_a_count(
    nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(nats_url)
    await store.apply("q", Inspect())

    async def uncounted(*_: Any) -> _nats_wire.Stored:
        return _nats_wire.Stored(1, None, False, 0, 0)

    monkeypatch.setattr(history(store).wire, "publish", uncounted)
    with pytest.raises(errors.UnsupportedOperation, match=re.escape("2.14 or newer")):
        await store.apply(fresh(), take())


async def test_no_jetstream(own_nats: Callable[..., Server], opened: Open) -> None:
    server = own_nats()
    async with proxied(server.url):
        store = opened(server.url)
        await store.apply("q", take(), NOW)
        await history(store).wire.ask("STREAM.DELETE.intervalq-log")
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("q", take(), NOW)
        answer = await store.apply("q", take(generation="n"), NOW)
        assert answer.first == Slot(1, NOW + HOURLY.interval), "made anew, after a quiet interval"


async def test_a_full_disk(own_nats: Callable[..., Server], opened: Open, tmp_path: Any) -> None:
    settings = tmp_path / "nats.conf"
    settings.write_text("jetstream { max_file_store: 40KB }\n")
    store = opened(own_nats("-c", str(settings)).url)

    async def fill() -> None:
        for number in range(1_000):
            await store.apply(f"q{number}", take(), NOW)

    with pytest.raises(errors.StoreFull):
        await fill()
    await purge(store, "intervalq-log", filter=f"{LOG}q1")
    assert (await store.apply("q2", take(), NOW)).count == 1


async def test_no_secret_is_told(own_nats: Callable[..., Server], opened: Open, tmp_path: Any) -> None:
    settings = tmp_path / "nats.conf"
    users = "{user: me, password: right}, {user: all, password: all}"
    settings.write_text(f"authorization {{ users = [{users}] }}\nno_auth_user: all\n")
    server = own_nats("-c", str(settings))
    told = []
    for login in (f"{CANARY}:{CANARY}@", f"{CANARY}@", f"me:{CANARY}@"):
        store = opened(f"nats://{login}127.0.0.1:{server.port}")
        told += [repr(store), store.url]
        with pytest.raises(errors.Unauthorized) as raised:
            await store.apply("q", take())
        told += [repr(raised.value), *traceback.format_exception(raised.value)]
    await opened(f"nats://me:right@127.0.0.1:{server.port}").apply("q", take())
    server.stop()
    store = opened(f"nats://{CANARY}:{CANARY}@127.0.0.1:{server.port}")
    with pytest.raises(errors.StoreUnavailable) as gone:
        await store.apply("q", take())
    told += traceback.format_exception(gone.value)
    assert not [text for text in told if CANARY in text]


async def test_rights(
    own_nats: Callable[..., Server], opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Who lacks some is told so."""
    settings = tmp_path / "nats.conf"
    denied = {
        "writer": 'publish: {deny: "intervalq.log.*"}',
        "listener": 'subscribe: {deny: "intervalq.log.*"}',
    }
    users = [f"{{user: {name}, password: x, permissions: {{{what}}}}}" for name, what in denied.items()]
    settings.write_text(
        f"authorization {{ users = [{', '.join(users)}, {{user: all}}] }}\nno_auth_user: all\n"
    )
    port = own_nats("-c", str(settings)).port
    writer, listener = (opened(f"nats://{name}:x@127.0.0.1:{port}") for name in denied)
    with pytest.raises(errors.Unauthorized, match="allow it to this user"):
        async with listener.wakeups("q"):
            pytest.fail("the subject isn't allowed")
    assert (await listener.apply("q", take(), NOW)).count == 1
    monkeypatch.setattr(_nats_wire, "WITHIN", 0.2)
    with pytest.raises(errors.Unauthorized, match="allow it to this user"):
        await writer.apply("q", take(), NOW)


@pytest.mark.parametrize(
    "url",
    [
        "nats://",
        "nats://{}:x@",
        "nats://a:{}@host:port",
        "nats://host/{}",
        "nats://host?{}=1",
        "nats://host#{}",
    ],
)
def test_what_is_no_url_is_not_repeated(url: str) -> None:
    with pytest.raises(errors.InvalidOption) as raised:
        NATSStore(url.format(CANARY))
    assert CANARY not in "".join(traceback.format_exception(raised.value))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "nats"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingExtra, match=re.escape("pip install 'intervalq[nats]'")):
        NATSStore("nats://host")


def test_trio_is_refused() -> None:
    async def main() -> None:
        store = NATSStore("nats://127.0.0.1")
        for command in (take(), Inspect()):
            with pytest.raises(errors.BackendUnsupported, match=r"trio.*sqlite://.*file://.*memory://"):
                await store.apply("q", command)
        with pytest.raises(errors.BackendUnsupported):
            await store.names()
        with pytest.raises(errors.BackendUnsupported):
            async with store.wakeups("q"):
                pytest.fail("the driver can't do this")
        await store.aclose()

    anyio.run(main, backend="trio")


async def test_what_can_not_be_done_is_not_kept(nats_url: str, opened: Open) -> None:
    queue, store = fresh(), opened(nats_url)
    limited = Settings(interval=1, max_running=3)
    before = (await store.apply(queue, take(limited, lease=1_000, nonce="g"), 5)).state
    with pytest.raises(errors.StoreError, match="not done"):
        await store.apply(queue, take(limited, reach=FOREVER, lease=FOREVER), 5)
    for one in (store, opened(nats_url)):
        assert (await one.apply(queue, Inspect(), 5)).state == before
    await store.apply(queue, Finish(generation="g", ended=(1,)), 5)
    await store.apply(queue, Drop())


async def test_a_server_that_is_gone_and_comes_back(own_nats: Callable[..., Server], opened: Open) -> None:
    server = own_nats()
    store = opened(server.url)
    await store.apply("q", take(), NOW)
    async with store.wakeups("q") as woken:
        server.stop()
        for _ in range(2):
            with pytest.raises(errors.StoreUnavailable):
                await woken()
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable):
            await store.apply("q", take(), NOW)
    for call in (store.names, store.advice):
        with pytest.raises(errors.StoreUnavailable):
            await call()
    with pytest.raises(errors.StoreUnavailable):
        async with store.wakeups("q"):
            pytest.fail("nobody is there to listen to")
    server.start()
    answer = await store.apply("q", take(), NOW)
    assert answer.first is not None
    assert answer.first.ticket == 2
    assert await store.names() == ["q"]


async def test_advice(own_nats: Callable[..., Server], opened: Open) -> None:
    store = opened(own_nats().url)
    safety = 2  # sentences about the way and the rights come first
    found = (await store.advice())[safety:]
    assert [level for level, _ in found] == ["ok", "warning", "warning"]
    assert re.search(r"NATS 2\.\d+", found[0][1])
    assert "sync_interval" in found[1][1]
    wire, made = history(store).wire, await history(store).streams()
    for stream in made:
        await wire.ask(f"STREAM.DELETE.{stream['name']}")
    for stream in made:
        limits = {"storage": "memory", "max_bytes": 10**6, "max_msgs_per_subject": 1}
        await wire.ask(f"STREAM.CREATE.{stream['name']}", stream | limits)
    found = (await store.advice())[safety:]
    assert [level for level, _ in found] == ["ok", "warning", "warning", "error", "warning", "warning"]
    assert "in memory" in found[1][1]
    assert "max_bytes 1000000" in found[2][1]
    assert "max_msgs_per_subject 8192" in found[3][1]

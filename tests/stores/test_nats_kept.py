"""Queues on NATS: the messages that are sent, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from faults.proxy import Fault, proxied
from intervalq import errors, rules
from intervalq._spec import passing
from intervalq.rules import (
    Advance,
    Command,
    Drop,
    HighWaterMark,
    Hold,
    Inspect,
    Resume,
    Settings,
    Slot,
)
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats._queue.log import fold
from intervalq_stores.nats._queue.step import BEGIN, ONE
from servers import Server
from stores import nats_queues
from stores.nats_queues import (
    HOURLY,
    LOG,
    NOW,
    STATE,
    Open,
    fresh,
    history,
    log_of,
    purge,
    take,
)

opened = nats_queues.opened


async def test_a_backlog_costs_one_message_a_command(nats_url: str, opened: Open) -> None:
    """Nothing is read, whatever others do meanwhile, except now and then to learn the server's clock."""
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
    """The server has stored the command, and says so when it is sent again: it is done once."""
    monkeypatch.setattr(nats_server, "_AGAIN", 0.05)
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
    """The call times out, and the next one uses a new connection."""
    queue = fresh()
    async with proxied(nats_url) as proxy:
        store = opened(proxy.url)
        await store.apply(queue, take(), NOW)
        for command in (take(), Inspect(), Hold()):
            await proxy.begin(Fault.BLACK_HOLE)
            with monkeypatch.context() as soon:
                soon.setattr(nats_server, "WITHIN", 0.1)
                with pytest.raises(errors.StoreTimeout):
                    await store.apply(queue, command, NOW)
            await proxy.heal()
            await store.apply(queue, Resume(), NOW)
        await store.aclose()
    await opened(nats_url).apply(queue, Drop())


async def test_a_message_that_comes_again_after_the_server_forgot_it(
    own_nats: Callable[..., Server], opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the window for duplicates is shorter than the patience, slots go unused, but none is used twice."""
    monkeypatch.setattr(nats_server, "_AGAIN", 0.3)
    server = own_nats()
    store = opened(server.url)
    made = await history(store).streams()
    made[0]["duplicate_window"] = 100_000_000
    await history(store).server.ask("STREAM.UPDATE.intervalq-log", made[0])
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
    """The writer of every n-th entry stores its result as a checkpoint, so a newcomer reads little."""
    queue, stores = fresh(), [opened(nats_url) for _ in range(3)]
    for number in range(150):
        await stores[number % 3].apply(queue, take(), NOW)
    for store in stores:
        await store.aclose()  # which waits for writes in flight
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
    for module in (rules, passing):
        monkeypatch.setattr(module, "IDLE_KEPT", -(10**9))
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
    for module in (rules, passing):
        monkeypatch.setattr(module, "IDLE_KEPT", -(10**8))
    if by == "names":
        assert await store.names() == ["stays"]
    for _ in range(2 * 64):
        await store.apply("stays", take(HOURLY, attach=True))
        await store.aclose()  # which waits for background work
    assert await history(store).tokens() == ["stays"]


async def test_names_come_in_pages(nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store, queues = opened(nats_url), sorted(fresh() for _ in range(5))
    for queue in queues:
        await store.apply(queue, take())
    ask = history(store).server.ask

    async def paged(subject: str, body: Any = None) -> Any:
        answer = await ask(
            subject, None if body is None else {k: v for k, v in body.items() if k != "offset"}
        )
        if body is not None and "offset" in body:
            all_of_them = sorted(answer["state"]["subjects"])
            some = all_of_them[body["offset"] : body["offset"] + 3]
            answer |= {"total": len(all_of_them), "state": {"subjects": dict.fromkeys(some, 1)}}
        return answer

    monkeypatch.setattr(history(store).server, "ask", paged)
    assert set(queues) <= set(await store.names())
    monkeypatch.undo()
    for queue in queues:
        await store.apply(queue, Drop())


async def test_a_log_that_was_begun_anew_needs_nothing_from_before(nats_url: str, opened: Open) -> None:
    """It needs no checkpoint either; a quiet interval follows, because its beginning is lost."""
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


async def test_who_knows_an_old_entry_goes_on_from_there_if_all_else_is_gone(
    nats_url: str, opened: Open
) -> None:
    """This holds however old the entry is: what a newcomer can't derive is no reason to start over."""
    queue, awake, asleep = fresh(), opened(nats_url), opened(nats_url)
    await awake.apply(queue, take(take=2), NOW)
    slept = await asleep.apply(queue, take(), NOW)
    base = asleep._known(queue).base
    assert base is not None
    for _ in range(150):
        answer = await awake.apply(queue, take(), NOW)
    await awake.aclose()  # which waits for checkpoints
    await purge(awake, "intervalq-log", filter=LOG + queue, seq=base.sequence)
    await purge(awake, "intervalq-state", filter=STATE + queue)
    assert slept.state is not None
    paused = await asleep.apply(queue, Hold(generation=slept.state.generation), NOW)
    for state in (paused.state, (await awake.apply(queue, Inspect(), NOW)).state):
        assert state is not None
        assert state.generation == slept.state.generation
        assert answer.state is not None
        assert state.ticket == answer.state.ticket == 153
    await awake.apply(queue, Drop())


async def test_writes_that_were_lost_again(nats_url: str, opened: Open) -> None:
    """As after a crash of the machine, the sum goes back, then on; no answer is based on lost entries."""
    queue, one, two = fresh(), opened(nats_url), opened(nats_url)
    await one.apply(queue, take(take=3, nonce="g"), NOW)
    await two.apply(queue, take(), NOW)
    await one.apply(queue, take(), NOW)
    assert (await one.apply(queue, take(take=500), NOW)).count == 500
    last = await history(one).last(queue)
    assert last is not None
    await history(one).server.ask("STREAM.MSG.DELETE.intervalq-log", {"seq": last.sequence})
    for number in (6, 7):
        answer = await two.apply(queue, take(), NOW)
        assert answer.first is not None
        assert answer.first.ticket == number
    answer = await one.apply(queue, take(), NOW)
    assert answer.first == Slot(8, NOW + 7 * HOURLY.interval)
    look = await opened(nats_url).apply(queue, Inspect(), NOW)
    assert look.state == answer.state
    mark = HighWaterMark(505, NOW + 504 * HOURLY.interval)
    healed = await one.apply(queue, take(generation="g", high_water_mark=mark), NOW)
    assert healed.healed
    assert healed.first == Slot(506, NOW + 505 * HOURLY.interval)
    await one.apply(queue, Drop())

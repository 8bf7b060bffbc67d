"""Queues on NATS: foreign data, missing data, missing rights, and what is impossible."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from faults.proxy import proxied
from intervalq import errors, rules
from intervalq.rules import (
    FOREVER,
    Drop,
    Finish,
    Hold,
    Inspect,
    Settings,
    Slot,
)
from intervalq_stores.nats import _server as nats_server
from intervalq_stores.nats._queue.log import fold
from intervalq_stores.nats._queue.step import BEGIN, GRANTING, ONE, fingerprint
from intervalq_stores.nats.queues import NATSStore
from servers import Server
from stores import nats_queues
from stores.nats_queues import (
    CANARY,
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


def by_hand(step: str, increment: int = ONE) -> dict[str, str]:
    return {"Nats-Incr": f"+{increment}", "Iq-Step": step}


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"Nats-Incr": "+1"}, errors.CorruptState),
        (by_hand("theirs"), errors.CorruptState),
        (by_hand('{"v":1,"op":"fly"}'), errors.CorruptState),
        (by_hand(f"[1,{NOW},1,0,null,[]]", ONE), errors.CorruptState),
        (by_hand('{"v":9,"op":"fly"}'), errors.VersionMismatch),
    ],
)
async def test_what_is_not_ours_in_a_log_is_left_as_it_is(
    nats_url: str, opened: Open, headers: dict[str, str], error: type[errors.StoreError]
) -> None:
    queue, store = fresh(), opened(nats_url)
    await store.apply(queue, take(), NOW)
    await history(store).server.publish(LOG + queue, headers)
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
    for reported, error in broken:
        await history(store).server.publish(STATE + queue, {}, json.dumps(reported).encode())
        with pytest.raises(error, match=queue):
            await opened(nats_url).apply(queue, Inspect(), NOW)
    await purge(store, "intervalq-state", filter=STATE + queue)
    await store.apply(queue, Drop())


@pytest.mark.parametrize("version", [1, 5])
async def test_what_was_written_in_older_layouts(nats_url: str, opened: Open, version: int) -> None:
    """From a checkpoint and entries behind it, the queue continues, and is kept in the present layouts."""
    queue, store = fresh(), opened(nats_url)
    await store.apply(queue, take(nonce="g", take=3), NOW)
    await store.apply(queue, take(), NOW)
    position, _ = fold(BEGIN, await log_of(store, queue), nats_url)
    assert position.state is not None
    names = {name: older for older, name in rules.RENAMED.items()}
    record = {names.get(name, name): value for name, value in position.state.to_dict().items()}
    for name in ("late", "error", "error_until") if version == 1 else ():
        del record[name]
    kept = {"v": 1, "state": {**record, "version": version}, "value": str(position.value)}
    reply = json.dumps({**kept, "sequence": position.sequence}).encode()
    await history(store).server.publish(STATE + queue, {}, reply)
    plain_one = by_hand(f'[1,{NOW},2,0,"g",[[2,{NOW}]]]', ONE + GRANTING + 2)
    text = f'{{"v":1,"op":"advance","generation":"g","take":1,"mark":[6,5],"now":{NOW}}}'
    full_one = by_hand(text, fingerprint(9))
    for headers in (plain_one, full_one):
        await history(store).server.publish(LOG + queue, headers)
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
    """An old server, which has no counters, creates such a stream; nothing is stored there."""
    store = opened(own_nats().url)
    plain_stream = {"name": "intervalq-log", "subjects": [f"{LOG}*"], "allow_direct": True}
    if when == "meanwhile":
        await store.apply("q", take(), NOW)
        await history(store).server.ask("STREAM.DELETE.intervalq-log")
    await history(store).server.ask("STREAM.CREATE.intervalq-log", plain_stream)
    with pytest.raises(errors.StoreError, match=re.escape("2.14 or newer")) as raised:
        await store.apply("q", take(), NOW)
    assert isinstance(raised.value, errors.UnsupportedOperation) == (when == "before")
    assert not isinstance(raised.value, errors.StoreUnavailable)
    answer = await history(store).server.ask("STREAM.INFO.intervalq-log")
    assert answer["state"]["messages"] == 0


async def test_an_acknowledgement_without_a_count(
    nats_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(nats_url)
    await store.apply("q", Inspect())

    async def uncounted(*_: Any) -> nats_server.Stored:
        return nats_server.Stored(1, None, False, 0, 0)

    monkeypatch.setattr(history(store).server, "publish", uncounted)
    with pytest.raises(errors.UnsupportedOperation, match=re.escape("2.14 or newer")):
        await store.apply(fresh(), take())


async def test_no_jetstream(own_nats: Callable[..., Server], opened: Open) -> None:
    server = own_nats()
    async with proxied(server.url):
        store = opened(server.url)
        await store.apply("q", take(), NOW)
        await history(store).server.ask("STREAM.DELETE.intervalq-log")
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
    reported = []
    for login in (f"{CANARY}:{CANARY}@", f"{CANARY}@", f"me:{CANARY}@"):
        store = opened(f"nats://{login}127.0.0.1:{server.port}")
        reported += [repr(store), store.url]
        with pytest.raises(errors.Unauthorized) as raised:
            await store.apply("q", take())
        reported += [repr(raised.value), *traceback.format_exception(raised.value)]
    await opened(f"nats://me:right@127.0.0.1:{server.port}").apply("q", take())
    server.stop()
    store = opened(f"nats://{CANARY}:{CANARY}@127.0.0.1:{server.port}")
    with pytest.raises(errors.StoreUnavailable) as gone:
        await store.apply("q", take())
    reported += traceback.format_exception(gone.value)
    assert not [text for text in reported if CANARY in text]


async def test_rights(
    own_nats: Callable[..., Server], opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A client that lacks some gets an error that says so."""
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
    with pytest.raises(errors.Unauthorized, match="allow it for this user"):
        async with listener.wakeups("q"):
            pytest.fail("the subject isn't allowed")
    assert (await listener.apply("q", take(), NOW)).count == 1
    monkeypatch.setattr(nats_server, "WITHIN", 2.0)  # a busy machine has to connect within that time
    with pytest.raises(errors.Unauthorized, match="allow it for this user"):
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
    safety = 2  # sentences about the connection and the rights come first
    found = (await store.advice())[safety:]
    assert [level for level, _ in found] == ["ok", "warning", "warning"]
    assert re.search(r"NATS 2\.\d+", found[0][1])
    assert "sync_interval" in found[1][1]
    connection, made = history(store).server, await history(store).streams()
    for stream in made:
        await connection.ask(f"STREAM.DELETE.{stream['name']}")
    for stream in made:
        limits = {"storage": "memory", "max_bytes": 10**6, "max_msgs_per_subject": 1}
        await connection.ask(f"STREAM.CREATE.{stream['name']}", stream | limits)
    found = (await store.advice())[safety:]
    assert [level for level, _ in found] == ["ok", "warning", "warning", "error", "warning", "warning"]
    assert "in memory" in found[1][1]
    assert "max_bytes 1000000" in found[2][1]
    assert "max_msgs_per_subject 8192" in found[3][1]

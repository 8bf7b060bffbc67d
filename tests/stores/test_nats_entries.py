"""Entries of a log: how they are written and read again."""

from __future__ import annotations

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from intervalq.rules import (
    FOREVER,
    Advance,
    Auto,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Limit,
    Reclaim,
    Refusal,
    Resume,
    Settings,
    Slot,
)
from intervalq_stores.nats._client import QuickMsg, status
from intervalq_stores.nats._queue import entry as entries
from intervalq_stores.nats._queue.entry import Broken, Newer
from intervalq_stores.nats._queue.step import (
    ONE,
    Entry,
    Full,
    Plain,
    fingerprint,
)
from stores.nats_steps import NOW, TAKE

COMMANDS: list[Command] = [
    Advance(
        settings=Settings(7, 2, 3, 4, True),
        attach=True,
        generation="g",
        nonce="n",
        take=3,
        notice=1,
        reach=2,
        lease=5,
        slots=(Slot(1, -5), Slot(2, 2, 5)),
        release=(Slot(4, 4, 3),),
        high_water_mark=HighWaterMark(9, FOREVER, 3),
        costs=(1, 2),
        until=NOW,
        error=6,
    ),
    Hold(length=9),
    Resume(settings=Settings(1)),
    Configure(interval=3, burst=2, max_running=0),
    Configure(),
    Reclaim(generation='"\r\nNats-Incr: 9 \N{SNOWMAN}'),
    Finish(generation="g", ended=(1, 2), running=(3,), lease=1),
    Drop(),
    Advance(slots=tuple([Slot(n, NOW + n * 7) for n in range(3_000)])),
]


def message(step: Plain | Full, **headers: str) -> Msg:
    more = step.increment if isinstance(step, Plain) else fingerprint(5)
    return Msg(
        Client(),
        data=b'{"val":"%d"}' % (more + 99),
        headers={
            "Nats-Incr": f"+{more}",
            "Nats-Sequence": "12",
            "Nats-Time-Stamp": "2026-11-22T01:50:59.957937789Z",
            entries.STEP: entries.written(step),
            **headers,
        },
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize(("now", "reset"), [(None, False), (-5, True)])
def test_entries_come_back_as_they_were(command: Command, now: int | None, reset: bool) -> None:
    step = Full(command, now, reset)
    text = entries.written(step)
    assert "\n" not in text
    assert len(text) < 60_000
    entry = entries.entry(message(step))
    assert entry == Entry(12, 1_795_312_259_957_937, fingerprint(5), fingerprint(5) + 99, step)


def quick(step: Plain | Full, *, order: str = "") -> QuickMsg:
    """As it arrives from the server; with `order`, a header of another client comes before the command."""
    slow = message(step)
    assert slow.headers is not None
    names = ["Nats-Incr", *order.split(), entries.STEP]
    lines = [f"{name}: {slow.headers.get(name, 'x')}" for name in names]
    lines += ["Nats-Stream: s", "Nats-Subject: a.b", "Nats-Sequence: 12"]
    lines += [f"Nats-Time-Stamp: {slow.headers['Nats-Time-Stamp']}", "Nats-Num-Pending: 3", "", ""]
    return QuickMsg(Client(), "_INBOX.x", "", slow.data, "\r\n".join(["NATS/1.0", *lines]).encode())


def test_quick_and_slow_reading_give_the_same() -> None:
    steps: list[Plain | Full] = [Full(command, NOW, True) for command in COMMANDS]
    for step in (*steps, Plain(NOW, 2, 0, "g", (Slot(1, -2),))):
        slow = entries.entry(message(step))
        for order in ("", "Nats-Msg-Id", "Nats-Msg-Id Theirs"):
            found = quick(step, order=order)
            assert entries.entry(found) == slow
            assert entries.entry(Msg(Client(), data=found.data, headers=found.headers)) == slow


def test_what_the_server_says_in_the_place_of_a_message() -> None:
    for first, reported in (
        ("NATS/1.0 404 Message Not Found", {"Status": "404", "Description": "Message Not Found"}),
        ("NATS/1.0 503", {"Status": "503"}),
        ("NATS/1.0 204 EOB", {"Status": "204", "Description": "EOB", "Nats-Num-Pending": "0"}),
    ):
        more = "Nats-Num-Pending: 0\r\n" if "EOB" in first else ""
        found = QuickMsg(Client(), "a", "", b"", f"{first}\r\n{more}\r\n".encode())
        assert found.headers == reported
        assert status(found) == status(Msg(Client(), headers=reported)) == reported["Status"]
    assert status(QuickMsg(Client(), "a", "", b"", b"NATS/1.0\r\nStatus: 404\r\n\r\n")) is None
    none = QuickMsg(Client(), "a", "", b"", b"")
    assert (none.headers, status(none)) == (None, None)


def test_plain_entries_come_back_as_they_were() -> None:
    for step in (
        Plain(NOW, 0, 5, None, ()),
        Plain(-3, 7, 0, 'g"\r\n', (Slot(1, -2), Slot(3, 4), Slot(4, 9, 5))),
        Plain(None, 3, 0, "g", ()),
        Plain(NOW, 3, 50, "g", (Slot(3, 4),), 70, 3, 20),
    ):
        assert entries.entry(message(step)).step == step


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "7",
        "x",
        "z",
        "zAAAA",
        "[1,2]",
        '[1,2,"3",0,null,[]]',
        "[1,2,1,0,7,[]]",
        "[1,2,1,0,null,[[1]]]",
        "[true,2,1,0,null,[]]",
        '{"v":2,"op":"advance","high_water_mark":[1]}',
        '{"v":2,"op":"advance","high_water_mark":[1,2,3,4]}',
        '{"v":2,"op":"advance","costs":2}',
        '{"v":2,"op":"advance","until":null}',
        '{"v":1}',
        '{"v":1,"op":"fly"}',
        '{"v":1,"op":"hold","length":"x"}',
        '{"v":1,"op":"hold","nonce":7}',
        '{"v":1,"op":"hold","wings":2}',
        '{"v":1,"op":"advance","settings":[1]}',
        '{"v":1,"op":"hold","take":1}',
        "[" * 60_000,
    ],
)
def test_what_was_not_written_here_is_told(text: str) -> None:
    with pytest.raises(Broken):
        entries.entry(message(Full(Hold(), None, False), **{entries.STEP: text}))


@pytest.mark.parametrize("slot", ["[1]", "[1,2,3,'4']", '[1,"2"]', "[1,2,true]", "7"])
def test_broken_slots(slot: str) -> None:
    step = Plain(2, 1, 0, None, ())
    assert entries.entry(message(step)).step == step
    with pytest.raises(Broken):
        entries.entry(message(step, **{entries.STEP: f"[2,2,1,0,null,[{slot}]]"}))


def test_broken_messages() -> None:
    whole = message(Full(Hold(), None, False))
    assert whole.headers is not None
    for name in whole.headers:
        lacking = Msg(
            Client(), data=whole.data, headers={k: v for k, v in whole.headers.items() if k != name}
        )
        with pytest.raises(Broken):
            entries.entry(lacking)
    for increment_ in ("+1", "x", str(2 * ONE)):
        with pytest.raises(Broken):
            entries.entry(message(Full(Hold(), None, False), **{"Nats-Incr": increment_}))
    for data in (b"", b"{}", b'{"val":"x"}', b"7"):
        with pytest.raises(Broken):
            entries.entry(Msg(Client(), data=data, headers=whole.headers))
    assert entries.entry(Msg(Client(), data=b'{ "val" : "5" }', headers=whole.headers)).value == 5


def test_newer_entries() -> None:
    for text in ('[6,"new"]', '{"v":6}'):
        with pytest.raises(Newer):
            entries.entry(message(Full(Hold(), None, False), **{entries.STEP: text}))


def test_entries_have_the_oldest_layout_that_their_limits_need() -> None:
    sliding, fixed = Limit(5, 1_000), Limit(7, 60_000_000, "tokens", 3, 59)
    for limits, layout in (((sliding,), 3), ((sliding, fixed), 4)):
        for command in (Configure(limits=limits), Advance(settings=Settings(1, limits=limits), take=1)):
            step = Full(command, None, False)
            text = entries.written(step)
            assert text.startswith(f'{{"v":{layout},')
            assert entries.entry(message(step)).step == step
            with pytest.raises(Broken):
                entries.entry(message(step, **{entries.STEP: text.replace('"starts",0', '"starts"')}))
    assert entries.written(Full(Configure(limits=()), None, False)).startswith('{"v":3,')


def test_entries_about_automatic_intervals_have_layout_5() -> None:
    auto, limits = Auto(1_000_000, 2_000), (Limit(5, 1_000),)
    for command in (
        Advance(settings=Settings(7, auto=auto), take=1),
        Advance(settings=Settings(7, limits=limits, auto=auto), take=1),
        Configure(auto=auto),
        Hold(generation="g", length=5, refusal=Refusal(3, 9)),
    ):
        step = Full(command, None, False)
        assert entries.written(step).startswith('{"v":5,')
        assert entries.entry(message(step)).step == step
    assert entries.written(Full(Hold(), None, False)).startswith('{"v":2,')


def test_entries_of_layout_1_are_understood() -> None:
    asked = Advance(
        generation="g", take=2, slots=(Slot(3, 5),), high_water_mark=HighWaterMark(9, 7), notice=4
    )
    text = '{"v":1,"op":"advance","generation":"g","slots":[[3,5]],"take":2,"notice":4,"mark":[9,7]}'
    step = Full(asked, None, False)
    assert entries.entry(message(step, **{entries.STEP: text})).step == step
    with pytest.raises(Broken):
        entries.entry(message(step, **{entries.STEP: text.replace('"v":1', '"v":2')}))
    old = Plain(NOW, 2, 5, "g", (Slot(3, 5),))
    text = f'[1,{NOW},2,5,"g",[[3,5]]]'
    assert entries.entry(message(old, **{entries.STEP: text})).step == old
    assert entries.written(old) == f'[2,{NOW},2,5,"g",[[3,5]],null]'


def test_what_may_end_a_hold_wakes() -> None:
    ends = [entries.ends_hold(entries.written(Full(command, None, False))) for command in COMMANDS[:8]]
    assert ends == [False, False, True, True, True, False, True, True]
    assert entries.ends_hold(entries.written(Full(TAKE, None, True)))
    for text in ("", "{", "[1]", entries.written(Plain(1, 1, 1, "g", ()))):
        assert not entries.ends_hold(text)


@pytest.mark.parametrize(
    ("stamp", "micros"),
    [
        ("2026-11-22T01:50:59.957937789Z", 1_795_312_259_957_937),
        ("2026-11-22T01:50:59.9Z", 1_795_312_259_900_000),
        ("2026-11-22T01:50:59Z", 1_795_312_259_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
    ],
)
def test_times(stamp: str, micros: int) -> None:
    assert entries.micros(stamp) == micros

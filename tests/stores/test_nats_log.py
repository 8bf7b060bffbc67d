from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg

from intervalq import rules
from intervalq.rules import (
    FOREVER,
    MAX_TICKETS,
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    Finish,
    Hold,
    Mark,
    Reclaim,
    Resume,
    Settings,
    Slot,
    State,
)
from intervalq.testing.commands import CommandSource
from intervalq_stores import _nats_entry
from intervalq_stores._nats_client import QuickMsg, status
from intervalq_stores._nats_clock import ServerClock
from intervalq_stores._nats_entry import Broken, Newer
from intervalq_stores._nats_log import Gap, beginning, fold, increment, is_over, plain
from intervalq_stores._nats_step import (
    BEGIN,
    ONE,
    Entry,
    Full,
    Plain,
    Position,
    entries,
    fingerprint,
    others,
    told,
)

NOW = 1_000_000_000_000_000
SECOND = 1_000_000


def backlog(**changes: object) -> State:
    """Ten tickets were issued, two were granted, and the last slot is some seconds away."""
    state = State(
        generation="g",
        settings=Settings(SECOND),
        ticket=10,
        due=NOW + 8 * SECOND,
        current=2,
        current_due=NOW,
        last_now=NOW,
    )
    return replace(state, **changes)  # type: ignore[arg-type]  # whatever a test needs


TAKE = Advance(generation="g", take=1)
ASKED = Advance(generation="g", slots=(Slot(3, NOW),), until=NOW + SECOND, notice=SECOND // 10)


# --- plain increments -------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_plain_increment_does_what_the_rules_do(seed: int) -> None:
    """Whenever a command may be sent as one, and at whatever instant it arrives."""
    source, random = CommandSource(seed), Random(seed)
    model: State | None = None
    for number in range(40):
        command, now = source.next(model)
        if isinstance(command, Advance) and random.random() < 0.6:  # as most are that shards send
            command = replace(command, attach=False, release=(), costs=(), error=0)
        after, answer = rules.apply(model, command, now)
        if model is not None and (step := plain(model, command, now, now)) is not None:
            assert increment(model, step) == (after, answer), f"step {number}"
            early = now - random.randint(1, 300)
            step = plain(model, command, early, now)
            if step is None:
                assert isinstance(command, Advance)
                assert command.ahead is not None, "its slots may be too far ahead then"
                continue
            for at in {now, random.randint(early, now), early}:
                if at >= model.last_now:
                    check_alike(model, step, command, at)
                    check_alike(with_others(model, random), step, command, at)
        model = after
        source.learn(answer)


def with_others(state: State, random: Random) -> State:
    """What plain entries of others may make of a record, before one's own arrives."""
    theirs = random.randint(1, 5)
    use = Slot(state.ticket, state.due, random.randint(1, 3))
    step = Plain(state.last_now, theirs, 0, state.generation, random.choice(((), (use,))))
    after, _ = increment(state, step)
    told_of, _ = increment(state, Plain(None, 0, 0, None, ()), theirs)
    assert (after.ticket, after.due) == (told_of.ticket, told_of.due)
    return after


def check_alike(state: State, step: Plain, command: Command, at: int) -> None:
    """The entry does what the rules do at an instant; but it may grant fewer of the new slots."""
    after, answer = rules.apply(state, command, at)
    found, said = increment(state, step)
    assert after is not None
    unknown = step.now is None or step.now < at
    if unknown:
        assert step.now is not None or (answer.begun == 0 and not answer.granted), "it was to tell nobody"
        assert said.begun <= answer.begun
        assert not said.at_once or answer.at_once
        answer = replace(answer, begun=said.begun, at_once=said.at_once)
        after = replace(after, current=found.current, current_due=found.current_due, last_now=found.last_now)
    assert found == after
    assert said == replace(answer, state=found, now=said.now)


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (backlog(held_since=NOW), TAKE),
        (backlog(held_until=NOW + SECOND), TAKE),
        (backlog(settings=Settings(SECOND, max_running=3)), TAKE),
        (backlog(running={1: NOW + SECOND}), TAKE),
        (backlog(last_now=NOW + 1), TAKE),
        (backlog(due=NOW - SECOND - 1), TAKE),
        (backlog(settings=Settings(SECOND, ephemeral=True), due=NOW - 60 * SECOND), replace(TAKE, take=0)),
        (backlog(due=FOREVER - 20 * SECOND), TAKE),
        (backlog(), replace(TAKE, notice=10 * SECOND)),
        (backlog(), replace(TAKE, take=MAX_TICKETS + 1)),
        (backlog(), replace(TAKE, take=-1)),
        (backlog(), replace(TAKE, attach=True)),
        (backlog(), replace(TAKE, release=(Slot(10, NOW + 8 * SECOND),))),
        (backlog(), replace(TAKE, high_water_mark=Mark(11, NOW + 9 * SECOND))),
        (backlog(), replace(TAKE, high_water_mark=Mark(10, NOW + 8 * SECOND, 1))),
        (backlog(late_total=2), replace(TAKE, high_water_mark=Mark(10, NOW + 8 * SECOND, 1))),
        (backlog(), replace(TAKE, costs=(2,))),
        (backlog(), replace(TAKE, take=2, costs=(1, 3))),
        (backlog(), replace(TAKE, error=1)),
        (backlog(error=7, error_until=NOW), TAKE),
        (backlog(), replace(ASKED, notice=SECOND // 10 + 1)),
        (backlog(), replace(ASKED, slots=(Slot(3, NOW - 1), Slot(4, NOW + SECOND)), notice=SECOND // 10)),
        (backlog(), replace(TAKE, slots=(Slot(11, NOW + 9 * SECOND),))),
        (backlog(revoked_through=3), replace(TAKE, slots=(Slot(3, NOW + SECOND),))),
        (backlog(), replace(TAKE, slots=(Slot(3, NOW - SECOND),))),
        (backlog(), replace(TAKE, generation="h", slots=(Slot(3, NOW + SECOND),))),
        (backlog(), Hold()),
        (backlog(), Resume()),
        (backlog(), Finish(generation="g")),
    ],
)
def test_what_is_never_sent_as_a_plain_increment(state: State, command: Command) -> None:
    assert plain(state, command, NOW, NOW) is None
    assert plain(backlog(), TAKE, NOW, NOW) is not None


def test_what_may_be_true_by_the_time_it_arrives_counts() -> None:
    """Of the two bounds of the store's clock the later one decides, and the earlier one is told."""
    state = backlog(due=NOW)
    late = NOW + SECOND
    assert plain(state, TAKE, NOW, late) == Plain(NOW, 1, 0, "g", ()), "it may have come by then"
    assert plain(state, TAKE, NOW - 2, late - 1) == Plain(None, 1, 0, "g", ()), "it tells nobody to go"
    reaching = replace(TAKE, reach=1)
    assert plain(state, reaching, NOW - 2, late - 1) == Plain(NOW - 2, 1, 1, "g", ())
    assert plain(state, TAKE, NOW, late + 1) is None
    slot = replace(TAKE, take=0, slots=(Slot(3, NOW),))
    assert plain(state, slot, NOW, NOW + SECOND // 10) is not None
    assert plain(state, slot, NOW, NOW + SECOND // 10 + 1) is None
    assert plain(state, ASKED, NOW, NOW) is not None
    assert plain(state, ASKED, NOW, NOW + 1) is None, "it may be late by then"
    assert plain(state, replace(ASKED, until=None), NOW, NOW + 1) is not None
    ahead = replace(ASKED, slots=(Slot(3, NOW + 2),), notice=2 * SECOND)
    assert plain(state, ahead, NOW, NOW + 1) is not None
    assert plain(state, ahead, NOW, NOW + 2) is None, "it may have come by then"
    assert plain(state, replace(TAKE, notice=SECOND + SECOND // 10), NOW, NOW) is not None
    assert plain(state, replace(TAKE, notice=SECOND + SECOND // 10), NOW, NOW + 1) is None
    erring = backlog(error=7, error_until=NOW + 1)
    assert plain(erring, TAKE, NOW, NOW) is not None
    assert plain(erring, TAKE, NOW, NOW + 1) is None, "it is forgotten by then"
    same = replace(TAKE, costs=(1,), high_water_mark=Mark(10, NOW + 8 * SECOND, 5))
    assert plain(backlog(late_total=5), same, NOW, NOW) is not None


def test_slots_that_cost_several() -> None:
    """What is known of the last slot that was granted is the last one that its ticket owns."""
    use = Plain(NOW, 0, 0, "g", (Slot(3, NOW + SECOND, 4), Slot(4, NOW + 2 * SECOND)))
    for log in ([use], [use, Plain(NOW, 1, 0, "g", ())]):
        entries_, value = [], 5
        for number, step in enumerate(log):
            value += step.increment
            entries_.append(Entry(number + 1, NOW, step.increment, value, step))
        position, _ = fold(Position(backlog(), 5), entries_, "nats://x")
        assert position.state is not None
        assert (position.state.current, position.state.current_due) == (4, NOW + 4 * SECOND)


def test_a_burst_begins_at_once() -> None:
    """Where slots lie back because idle time was saved up; but not where the sender isn't sure of it."""
    state = backlog(settings=Settings(SECOND, burst=5), due=NOW - 2 * SECOND)
    for at, at_once in ((NOW, True), (NOW - SECOND, True), (NOW - SECOND - 1, False)):
        step = plain(state, replace(TAKE, reach=3 * SECOND), at, NOW)
        assert step is not None
        _, answer = increment(state, step)
        assert (answer.begun, answer.at_once) == (1, at_once)
    _, answer = increment(state, Plain(NOW, 1, 0, "g", (Slot(10, NOW),)))
    assert (answer.granted, answer.begun, answer.at_once) == ((10,), 1, False)


def test_new_slots_that_were_over_when_they_were_stored() -> None:
    end = NOW + 9 * SECOND + SECOND // 10
    state, answer = increment(backlog(), Plain(NOW, 1, 0, "g", ()))
    assert not is_over(replace(answer, now=end))
    assert is_over(replace(answer, now=end + 1))
    assert not is_over(replace(answer, now=end + 1, blur=1)), "not surely"
    assert not is_over(replace(answer, now=end + 1, begun=1)), "it was granted"
    assert not is_over(replace(answer, now=end + 1, first=None))
    credit = replace(state, settings=Settings(SECOND, burst=3), held_total=7)
    assert not is_over(replace(answer, now=NOW + 11 * SECOND + 300_007, state=credit))
    assert is_over(replace(answer, now=NOW + 11 * SECOND + 300_008, state=credit))


# --- the log ----------------------------------------------------------------------------------------


class Log:
    """A counter on a server, and the model: the rules, one command after the other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.value = 0

    def add(self, step: Plain | Full, number: int = 7, at: int = NOW) -> Entry:
        more = step.increment if isinstance(step, Plain) else fingerprint(number)
        self.value += more
        self.entries.append(Entry(len(self.entries) + 1, at, more, self.value, step))
        return self.entries[-1]


def started() -> Log:
    log = Log()
    log.add(Full(Advance(settings=Settings(SECOND), nonce="g", take=2), None, False))
    log.add(Plain(NOW, 3, 0, "g", ()))
    log.add(Plain(NOW, 1, 0, "g", (Slot(2, NOW),)))
    return log


def test_sums() -> None:
    log = started()
    value = log.value
    assert (others(value), told(value), entries(value), value & ONE - 1) == (7, 2, 3, 4)
    log.add(Plain(None, 5, 0, "g", ()))
    assert (others(log.value), told(log.value), entries(log.value), log.value & ONE - 1) == (7, 2, 4, 9)
    log.add(Full(Hold(), None, False), 2**48)
    assert (others(log.value), entries(log.value), log.value & ONE - 1) == (7 + 2**48, 5, 9)


def test_what_a_log_comes_to() -> None:
    log = started()
    position, answer = fold(BEGIN, log.entries, "nats://x")
    assert isinstance(answer, Answer)
    assert position.state == answer.state
    assert position[1:] == (log.value, 3)
    assert (answer.granted, answer.first, answer.count) == ((2,), Slot(6, NOW + 5 * SECOND), 1)
    assert position.state is not None
    assert (position.state.ticket, position.state.current) == (6, 2)
    half, _ = fold(BEGIN, log.entries[:2], "nats://x")
    assert fold(half, log.entries[2:], "nats://x") == (position, answer), "from wherever it is read"


def test_missing_entries_are_seen() -> None:
    log = started()
    for missing in range(2):
        with pytest.raises(Gap):
            fold(BEGIN, log.entries[:missing] + log.entries[missing + 1 :], "nats://x")
    hold = log.add(Full(Hold(), None, False))
    with pytest.raises(Gap):
        fold(BEGIN, [*log.entries[:2], hold], "nats://x")
    first, _ = fold(BEGIN, log.entries[:1], "nats://x")
    other = Log()
    other.add(log.entries[0].step, 8)
    other.add(log.entries[1].step)
    with pytest.raises(Gap):
        fold(first, other.entries[1:], "nats://x")  # as many entries, but of another log
    with pytest.raises(Gap):
        beginning(log.entries[1:])
    assert beginning(log.entries) == log.entries


def test_a_reset_needs_nothing_from_before() -> None:
    log = started()
    reset = log.add(
        Full(Advance(settings=Settings(SECOND), nonce="h", generation="g", take=1), NOW + 5, True)
    )
    after = log.add(Plain(NOW + 5, 1, 0, "h", ()))
    for read in (log.entries, log.entries[2:], log.entries[3:]):
        position, answer = fold(BEGIN, beginning(read), "nats://x")
        assert position.state is not None
        assert position.state.generation == "h"
        assert isinstance(answer, Answer)
        assert answer.first == Slot(2, NOW + 5 + 2 * SECOND), "after one quiet interval"
    assert beginning(log.entries) == [reset, after]


def test_a_plain_increment_without_a_place_changes_nothing() -> None:
    log = Log()
    log.add(Plain(NOW, 2, 0, "g", ()))
    assert fold(BEGIN, log.entries, "nats://x") == (Position(None, log.value, 1), None)
    for stop in (Hold(length=SECOND), Configure(max_running=2)):
        log = started()
        log.add(Full(stop, None, False))
        before, _ = fold(BEGIN, log.entries, "nats://x")
        for _ in range(2):
            log.add(Plain(NOW + 2 * SECOND, 2, SECOND, "g", (Slot(3, NOW + SECOND),)))
        position, answer = fold(BEGIN, log.entries, "nats://x")
        assert position.state == before.state
        assert answer is None


def test_slots_that_can_not_be_used_are_left_alone() -> None:
    """Their tickets were voided on the way, or are of another record: the owner asks again, in full."""
    log = started()
    log.add(Full(Reclaim(), None, False))
    log.add(Plain(NOW, 1, 0, "g", (Slot(3, NOW + SECOND), Slot(9, NOW))))
    log.add(Plain(NOW, 2, 0, "other", (Slot(7, NOW + SECOND),)))
    position, answer = fold(BEGIN, log.entries, "nats://x")
    assert isinstance(answer, Answer)
    assert (answer.granted, answer.missed, answer.count) == ((), (), 2)
    assert position.state is not None
    assert (position.state.ticket, position.state.current) == (9, 2)


def test_slots_that_are_too_far_ahead_by_then_are_left_alone() -> None:
    """The queue's clock was set back between the sender's look and its entry."""
    state = replace(backlog(), ticket=5, current=2, current_due=NOW - SECOND, due=NOW + 4 * SECOND)
    step = plain(state, replace(TAKE, take=0, slots=(Slot(3, NOW + 5),), ahead=9), NOW, NOW)
    assert step is not None
    assert increment(state, step)[1].granted == (3,)
    for back, granted in ((4, (3,)), (5, ())):
        later = replace(state, held_total=back, late_total=back)
        assert increment(later, step)[1].granted == granted
    granted_before = replace(state, held_total=5, late_total=5, current=3)
    assert increment(granted_before, step)[1].granted == (3,)


def test_new_slots_are_granted_ahead_only_behind_tickets_that_the_sender_knows() -> None:
    state = replace(backlog(), due=NOW, ticket=5)
    take = replace(TAKE, take=2, reach=9 * SECOND, notice=SECOND, high_water_mark=Mark(5, NOW, 0))
    step = plain(state, take, NOW, NOW)
    assert step is not None
    assert increment(state, step)[1].begun == 2
    assert increment(state, step, taken=1)[1].begun == 0
    soon = replace(state, ticket=6, due=NOW - SECOND // 2)
    assert increment(soon, step)[1].begun == 1, "what is next is granted to whoever comes"


def test_what_can_not_be_done_is_void_for_all() -> None:
    log = started()
    log.add(Full(Configure(max_running=2), None, False))
    before, _ = fold(BEGIN, log.entries, "nats://x")
    log.add(Full(Advance(generation="g", slots=(Slot(3, NOW + SECOND),), lease=FOREVER), None, False))
    position, outcome = fold(BEGIN, log.entries, "nats://x")
    assert isinstance(outcome, Exception)
    assert position.state == before.state
    ahead = Mark(9, NOW + 9 * SECOND, FOREVER + 1)
    for command, at in (
        (Advance(generation="g", high_water_mark=ahead), NOW - SECOND),
        (Advance(generation="g", error=1), FOREVER - 1),
    ):
        log = started()
        before, _ = fold(BEGIN, log.entries, "nats://x")
        log.add(Full(command, at, False))
        position, outcome = fold(BEGIN, log.entries, "nats://x")
        assert isinstance(outcome, Exception)
        assert position.state == before.state
    empty = Log()
    empty.add(Full(Advance(settings=Settings(SECOND), nonce=""), None, False))
    position, outcome = fold(BEGIN, empty.entries, "nats://x")
    assert isinstance(outcome, ValueError)
    assert position.state is None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_logs_come_to_what_the_rules_say(seed: int) -> None:
    """With plain entries by senders whose knowledge is old; cut anywhere, the rest comes to the same."""
    source, random = CommandSource(seed), Random(seed)
    log = Log()
    model: State | None = None
    known: State | None = None
    for _ in range(30):
        command, now = source.next(model)
        step = plain(known, command, now, now) if known is not None else None
        if step is not None and (known == model or random.random() < 0.5):
            log.add(step, at=now)
        else:
            log.add(Full(command, now if random.random() < 0.5 else None, False), random.getrandbits(40), now)
        before = model
        position, answer = fold(BEGIN, log.entries, "nats://x")
        if step is None or known == before:
            model, expected = rules.apply(model, command, now)
            assert position.state == model
            assert answer == expected
        model = position.state
        known = model if random.random() < 0.8 else known
        if isinstance(answer, Answer):
            source.learn(answer)
    cut = random.randint(0, 29)
    half, _ = fold(BEGIN, log.entries[:cut], "nats://x")
    assert fold(half, log.entries[cut:], "nats://x")[0].state == model


# --- entries as they are written --------------------------------------------------------------------


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
        high_water_mark=Mark(9, FOREVER, 3),
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
            _nats_entry.STEP: _nats_entry.written(step),
            **headers,
        },
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize(("now", "reset"), [(None, False), (-5, True)])
def test_entries_come_back_as_they_were(command: Command, now: int | None, reset: bool) -> None:
    step = Full(command, now, reset)
    text = _nats_entry.written(step)
    assert "\n" not in text
    assert len(text) < 60_000
    entry = _nats_entry.entry(message(step))
    assert entry == Entry(12, 1_795_312_259_957_937, fingerprint(5), fingerprint(5) + 99, step)


def quick(step: Plain | Full, *, order: str = "") -> QuickMsg:
    """As it comes by the wire; with `order`, a header of another's before the command."""
    slow = message(step)
    assert slow.headers is not None
    names = ["Nats-Incr", *order.split(), _nats_entry.STEP]
    lines = [f"{name}: {slow.headers.get(name, 'x')}" for name in names]
    lines += ["Nats-Stream: s", "Nats-Subject: a.b", "Nats-Sequence: 12"]
    lines += [f"Nats-Time-Stamp: {slow.headers['Nats-Time-Stamp']}", "Nats-Num-Pending: 3", "", ""]
    return QuickMsg(Client(), "_INBOX.x", "", slow.data, "\r\n".join(["NATS/1.0", *lines]).encode())


def test_quick_and_slow_reading_give_the_same() -> None:
    steps: list[Plain | Full] = [Full(command, NOW, True) for command in COMMANDS]
    for step in (*steps, Plain(NOW, 2, 0, "g", (Slot(1, -2),))):
        slow = _nats_entry.entry(message(step))
        for order in ("", "Nats-Msg-Id", "Nats-Msg-Id Theirs"):
            found = quick(step, order=order)
            assert _nats_entry.entry(found) == slow
            assert _nats_entry.entry(Msg(Client(), data=found.data, headers=found.headers)) == slow


def test_what_the_server_says_in_the_place_of_a_message() -> None:
    for first, said in (
        ("NATS/1.0 404 Message Not Found", {"Status": "404", "Description": "Message Not Found"}),
        ("NATS/1.0 503", {"Status": "503"}),
        ("NATS/1.0 204 EOB", {"Status": "204", "Description": "EOB", "Nats-Num-Pending": "0"}),
    ):
        more = "Nats-Num-Pending: 0\r\n" if "EOB" in first else ""
        found = QuickMsg(Client(), "a", "", b"", f"{first}\r\n{more}\r\n".encode())
        assert found.headers == said
        assert status(found) == status(Msg(Client(), headers=said)) == said["Status"]
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
        assert _nats_entry.entry(message(step)).step == step


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
        _nats_entry.entry(message(Full(Hold(), None, False), **{_nats_entry.STEP: text}))


@pytest.mark.parametrize("slot", ["[1]", "[1,2,3,4]", '[1,"2"]', "[1,2,true]", "7"])
def test_broken_slots(slot: str) -> None:
    step = Plain(2, 1, 0, None, ())
    assert _nats_entry.entry(message(step)).step == step
    with pytest.raises(Broken):
        _nats_entry.entry(message(step, **{_nats_entry.STEP: f"[2,2,1,0,null,[{slot}]]"}))


def test_broken_messages() -> None:
    whole = message(Full(Hold(), None, False))
    assert whole.headers is not None
    for name in whole.headers:
        lacking = Msg(
            Client(), data=whole.data, headers={k: v for k, v in whole.headers.items() if k != name}
        )
        with pytest.raises(Broken):
            _nats_entry.entry(lacking)
    for increment_ in ("+1", "x", str(2 * ONE)):
        with pytest.raises(Broken):
            _nats_entry.entry(message(Full(Hold(), None, False), **{"Nats-Incr": increment_}))
    for data in (b"", b"{}", b'{"val":"x"}', b"7"):
        with pytest.raises(Broken):
            _nats_entry.entry(Msg(Client(), data=data, headers=whole.headers))
    assert _nats_entry.entry(Msg(Client(), data=b'{ "val" : "5" }', headers=whole.headers)).value == 5


def test_newer_entries() -> None:
    for text in ('[3,"new"]', '{"v":3}'):
        with pytest.raises(Newer):
            _nats_entry.entry(message(Full(Hold(), None, False), **{_nats_entry.STEP: text}))


def test_entries_of_layout_1_are_understood() -> None:
    asked = Advance(generation="g", take=2, slots=(Slot(3, 5),), high_water_mark=Mark(9, 7), notice=4)
    text = '{"v":1,"op":"advance","generation":"g","slots":[[3,5]],"take":2,"notice":4,"mark":[9,7]}'
    step = Full(asked, None, False)
    assert _nats_entry.entry(message(step, **{_nats_entry.STEP: text})).step == step
    with pytest.raises(Broken):
        _nats_entry.entry(message(step, **{_nats_entry.STEP: text.replace('"v":1', '"v":2')}))
    old = Plain(NOW, 2, 5, "g", (Slot(3, 5),))
    text = f'[1,{NOW},2,5,"g",[[3,5]]]'
    assert _nats_entry.entry(message(old, **{_nats_entry.STEP: text})).step == old
    assert _nats_entry.written(old) == f'[2,{NOW},2,5,"g",[[3,5]],null]'


def test_what_may_end_a_hold_wakes() -> None:
    ends = [
        _nats_entry.ends_hold(_nats_entry.written(Full(command, None, False))) for command in COMMANDS[:8]
    ]
    assert ends == [False, False, True, True, True, False, True, True]
    assert _nats_entry.ends_hold(_nats_entry.written(Full(TAKE, None, True)))
    for text in ("", "{", "[1]", _nats_entry.written(Plain(1, 1, 1, "g", ()))):
        assert not _nats_entry.ends_hold(text)


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
    assert _nats_entry.micros(stamp) == micros


# --- the server's clock -----------------------------------------------------------------------------


def test_bounds_narrow_with_answers_and_widen_with_age() -> None:
    clock = ServerClock()
    assert not clock.is_fresh(0)
    clock.learn(1_000, 1_400, 51_200)
    assert (clock.earliest(1_400), clock.latest(1_400)) == (51_199, 51_602)
    clock.learn(2_000, 2_100, 52_050)
    assert clock.latest(2_100) - clock.earliest(2_100) <= 103
    assert clock.is_fresh(2_100 + 99_000)
    assert not clock.is_fresh(2_100 + 100_000)
    bounds = [clock.latest(at) - clock.earliest(at) for at in range(2_100, 2_002_100, 500_000)]
    assert all(later > earlier for earlier, later in pairwise(bounds))
    clock.learn(3_000_000, 3_000_100, 60_000)  # it was set
    assert clock.earliest(3_000_100) <= 60_100
    assert clock.latest(3_000_100) >= 60_000


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_bounds_hold(seed: int) -> None:
    """Whatever drift there is within what is allowed, and however long answers take."""
    random = Random(seed)
    clock, rate, at = ServerClock(), 1 + random.uniform(-5e-4, 5e-4), 0
    for _ in range(20):
        sent = at + random.randint(0, 10**7)
        stored = sent + random.randint(0, 3_000)
        received = stored + random.randint(0, 3_000)
        clock.learn(sent, received, int(NOW + stored * rate))
        at = received + random.randint(0, 10**7)
        assert clock.earliest(at) <= NOW + at * rate <= clock.latest(at)

"""Durable schedules in virtual time: each occurrence's task is inserted once, whoever dies; none is lost."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from cronsim import CronSim

from intervalq.errors import (
    CorruptState,
    InvalidName,
    InvalidOption,
    MissingExtra,
    ScheduleNotFound,
    StoreUnavailable,
    UnsupportedOperation,
)
from intervalq.schedules._times.plan import Plan
from intervalq.tasks import Claim, Tasks
from intervalq.tasks._schedule.keeper import Keeper
from intervalq.tasks._schedule.record import QUEUE, Stored
from intervalq.tasks._schedule.step import REST, step
from intervalq.tasks.rules import Begin, Change, Insert, Modify, Row, Session, Work
from tasks.fake_store import FakeStore, handle, once
from virtual_store import gather, in_virtual_time

SECOND, HOUR, DAY = 1_000_000, 3_600_000_000, 86_400_000_000
EPOCH = 1_000_000_000 * SECOND
"""When virtual time begins: 2001-09-09T01:46:40Z."""
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")


def stored(misfire: str = "all", grace: int | None = None, **times: object) -> Stored:
    task = Insert("out", '"v"', "", skip=True)
    return Stored(name="s", plan=Plan.of(**times), task=task, misfire=misfire, grace=grace)  # type: ignore[arg-type]


# --- the step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("seed", range(3))
def test_a_year_of_steps_inserts_what_the_parser_lists_however_late_they_come(zone: str, seed: int) -> None:
    """The clock goes on by minutes or days, and now and then back; a step is sometimes lost, and repeated."""
    chance = random.Random(seed)
    schedule, now = stored(cron="30 2 * * *", timezone=zone), EPOCH
    through, ids = now, list[str]()
    while now < EPOCH + 365 * DAY:
        now += chance.choice([60 * SECOND, HOUR, DAY, 9 * DAY, -2 * HOUR])
        done = step(schedule, through, now, chance.choice([1, 5]))
        if chance.random() < 0.3:  # its process dies before it is stored
            continue
        ids += [insert.id for insert in done.inserts]
        assert done.after.through is not None
        schedule, through = done.after, max(through, done.after.through)
        assert done.at > now or len(done.inserts) in {1, 5}
    start = datetime.fromtimestamp(EPOCH / 1e6, UTC).astimezone(schedule.plan.zone)
    expected = []
    for time in CronSim("30 2 * * *", start):
        expected.append(f"s/{time.astimezone(UTC):%Y-%m-%dT%H:%MZ}")
        if len(expected) == len(ids):
            break
    assert ids == expected
    assert 200 < len(ids) <= 366


@pytest.mark.parametrize(
    ("misfire", "grace", "hours", "left_out"),
    [
        ("all", None, [2, 3, 4, 5], 0),
        ("once", None, [5], 3),
        ("skip", 10 * 60 * SECOND, [5], 3),
        ("skip", 60 * SECOND, [], 4),
    ],
)
def test_occurrences_that_come_too_late(
    misfire: str, grace: int | None, hours: list[int], left_out: int
) -> None:
    """It is 05:05, and 2, 3, 4 and 5 o'clock are due."""
    now = EPOCH + 3 * HOUR + 1_100 * SECOND
    done = step(stored(misfire, grace, every="1h"), EPOCH, now, 100)
    assert [insert.id for insert in done.inserts] == [f"s/2001-09-09T0{hour}:00Z" for hour in hours]
    assert done.left_out == left_out
    assert done.at == EPOCH + 4 * HOUR + 800 * SECOND
    assert done.after.last == (done.after.through if hours else None)
    assert not step(done.after, done.after.through or 0, now, 100).inserts


def test_a_schedule_rests_while_it_is_paused_and_at_its_end() -> None:
    paused = step(Stored.of(row(paused=True)), EPOCH, EPOCH + DAY, 9)
    assert (paused.inserts, paused.at) == ((), EPOCH + DAY + REST)
    ended = step(stored(every="1h", end=datetime(2001, 9, 9, 3, tzinfo=UTC)), EPOCH, EPOCH + DAY, 9)
    assert [insert.id[-6:] for insert in ended.inserts] == ["02:00Z", "03:00Z"]
    assert ended.at == EPOCH + DAY + REST


def row(**changes: object) -> Row:
    import json

    text = json.dumps(json.loads(stored(every="1h").to_json()) | changes)
    return Row("schedule/s", 1, QUEUE, EPOCH, text)


@pytest.mark.parametrize(
    "changes", [{"version": 2}, {"plan": "{}"}, {"plan": 7}, {"queue": None, "version": "1"}]
)
def test_a_row_that_is_no_schedule_is_said_to_be_none(changes: dict[str, object]) -> None:
    assert Stored.of(row()) == stored(every="1h")
    with pytest.raises(ValueError, match=r"."):
        Stored.of(row(**changes))
    with pytest.raises(ValueError, match="not a schedule"):
        Stored.of(row()._replace(json="[]"))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "T01:46:40Z"), (20, "T01:47Z"), (0.5, "T01:46:40.500000Z")]
)
def test_ids_are_as_exact_as_their_times(seconds: float, shown: str) -> None:
    insert = stored(every="1h").occurrence(EPOCH + round(seconds * SECOND))
    assert insert.id == f"s/2001-09-09{shown}"


# --- with workers ----------------------------------------------------------------------------------------


def workers(store: FakeStore, seen: list[tuple[str, int]]) -> Tasks:
    """A handle with a worker that notes the id of each task, and when it was inserted."""
    tasks = handle(store)

    @tasks.worker("out")
    async def note(task: Claim) -> None:
        seen.append((task.id, round(task.created * 1e6)))

    return tasks


def instants(*minutes: int) -> list[str]:
    """The ids of occurrences, by minutes since 01:00."""
    return [f"s/2001-09-09T{1 + minute // 60:02}:{minute % 60:02}Z" for minute in minutes]


@in_virtual_time
async def test_three_processes_insert_each_task_once_in_time() -> None:
    store, seen = FakeStore(delay=0.001), list[tuple[str, int]]()
    async with handle(store.line()) as own:
        await own.schedule("s", "out", {"a": 1}, every="1m")
        await own.schedule("s", "out", {"a": 1}, every="1m")
        version = (await store.rows(QUEUE))[0].version
        with anyio.move_on_after(5 * 60):
            await gather(*(workers(store.line(delay=0.001), seen).run for _ in range(3)))
    assert [id_ for id_, _ in seen] == instants(*range(47, 52))
    assert version == 0, "the same schedule again changes nothing"
    late = [at - (EPOCH - 2_800 * SECOND + minute * 60 * SECOND) for minute, (_, at) in enumerate(seen, 47)]
    assert max(late) < SECOND


@in_virtual_time
async def test_processes_die_at_any_call_and_answers_get_lost() -> None:
    """Each process is ended at some call; nothing is lost or doubled; hours without any are made up for."""
    store, seen, chance = FakeStore(), list[tuple[str, int]](), random.Random(7)
    async with handle(store.line()) as own:
        for name in ("s", "t", "u"):
            await own.schedule(name, "out", every="10s")
        for life in range(70):
            line, left = store.line(delay=0.001), chance.randrange(1, 60)
            if life % 3 == 0:
                line.loses = once(Modify, lambda command: bool(command.changes))
            scope = anyio.CancelScope(deadline=anyio.current_time() + chance.choice([2, 20, 60]))

            async def dies(
                _: object, scope: anyio.CancelScope = scope, line: FakeStore = line, left: int = left
            ) -> None:
                if len(line.calls) >= left:
                    line.is_down = True  # whatever it says in the end doesn't arrive
                    scope.cancel()

            line.before = dies
            with scope:
                await workers(line, seen).run()
        with anyio.move_on_after(60):
            await workers(store.line(), seen).run()
    for name in ("s", "t", "u"):
        times = sorted({datetime.fromisoformat(id_[2:]) for id_, _ in seen if id_.startswith(name)})
        begin = datetime(2001, 9, 9, 1, 46, 50, tzinfo=UTC)
        assert times == [begin + timedelta(seconds=10 * number) for number in range(len(times))]
        assert len(times) > 20
    assert set(Counter(id_ for id_, _ in {*seen}).values()) == {1}, "no task was inserted twice"


@in_virtual_time
async def test_what_a_thousand_schedules_cost() -> None:
    """A step takes fifty of them: four processes need some calls for all, and not one an occurrence."""
    store = FakeStore()
    lines = [store.line(delay=0.001) for _ in range(4)]

    def count(kind: type[Modify | Work]) -> int:
        return sum(line.sent(kind) for line in lines)

    async with handle(store.line()) as own, anyio.create_task_group() as group:
        for number in range(1_000):
            await own.schedule(f"s{number}", "out", every="10m")
        for line in lines:
            tasks = handle(line)
            tasks.worker("other")(lambda _: None)
            group.start_soon(tasks.run)
        await anyio.sleep(100)
        modified, worked = count(Modify), count(Work)
        await anyio.sleep(60)
        assert count(Modify) == modified, "nothing is changed between occurrences"
        idle = (count(Work) - worked) / 60
        worked = count(Work)
        await anyio.sleep(100)  # 01:50 comes
        assert len(await store.rows("out")) == 1_000
        assert count(Modify) - modified <= 1_000 / 20
        assert count(Work) - worked - 100 * idle < 1_000 / 10
        group.cancel_scope.cancel()


@in_virtual_time
async def test_changes_pauses_and_drops() -> None:
    store, seen = FakeStore(), list[tuple[str, int]]()
    async with handle(store.line()) as own, anyio.create_task_group() as group:
        group.start_soon(workers(store.line(), seen).run)
        await anyio.sleep(1)
        await own.schedule("s", "out", every="1m")  # the workers learn of it within a minute
        await anyio.sleep(60)
        info = await own.schedules.inspect("s", upcoming=2)
        assert (info.name, info.plan, info.queue, info.paused) == ("s", "every 1m", "out", False)
        assert f"{info.last:%H:%M}" == "01:47"
        assert [f"{time:%H:%M}" for time in info.upcoming] == ["01:48", "01:49"]
        await own.schedules.pause("s")
        await anyio.sleep(2 * 60)
        assert (await own.schedules.inspect("s")).paused
        await own.schedules.resume("s")  # 01:49:41, so that 01:48 and 01:49 don't count
        await own.schedules.resume("s")
        await anyio.sleep(60)
        assert [id_ for id_, _ in seen] == instants(47, 50)
        await own.schedule("s", "out", "new", every="2m", timezone="Europe/Berlin", window="03:00-12:00")
        await anyio.sleep(2 * 60)
        assert [id_ for id_, _ in seen] == instants(47, 50, 52)
        made = await own.schedules.fire("s")
        await anyio.sleep(1)
        assert [id_ for id_, _ in seen] == [*instants(47, 50, 52), made]
        assert [info.name for info in await own.schedules.inspect_all()] == ["s"]
        await own.schedules.drop("s")
        assert not await own.schedules.inspect_all()
        await anyio.sleep(4 * 60)
        assert len(seen) == 4
        for call in (own.schedules.drop, own.schedules.pause, own.schedules.fire, own.schedules.inspect):
            with pytest.raises(ScheduleNotFound):
                await call("s")
        group.cancel_scope.cancel()


@in_virtual_time
async def test_a_change_waits_for_a_step_and_frees_that_of_a_dead_process() -> None:
    store = FakeStore()
    async with handle(store.line()) as own:
        await own.schedule("s", "out", every="1h")
        await store.apply(Begin(Session("dead", expiry=SECOND)))
        (taken,) = (await store.apply(Work("dead", queues=(QUEUE,), limit=1))).claimed
        begin = anyio.current_time()
        await own.schedules.pause("s")
        assert 1 <= anyio.current_time() - begin < 2
        await own.schedules.drop("s")
        assert taken.session == "dead"


@in_virtual_time
async def test_a_schedule_that_cannot_be_read_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    store, seen = FakeStore(), list[tuple[str, int]]()
    async with handle(store.line()) as own:
        await own.schedule("s", "out", every="1m")
        await own.schedule("z", "out", every="1m")
        version = (await store.row("schedule/z")).version
        await store.apply(Modify(changes=(Change("schedule/z", version, json='{"version":9}'),)))
        with anyio.move_on_after(60):
            await workers(store.line(), seen).run()
        assert [id_ for id_, _ in seen] == instants(47)
        with pytest.raises(CorruptState, match="schedule/z"):
            await own.schedules.inspect("z")
        await own.schedules.drop("z")
    said = [record.message for record in caplog.records if "schedule/z" in record.message]
    assert len(said) == 1


@in_virtual_time
async def test_what_one_process_cannot_read_stays_due_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It puts the row off, whose time is the watermark since the end of a pause."""
    store, seen = FakeStore(), list[tuple[str, int]]()
    async with handle(store.line()) as own:
        await own.schedule("s", "out", every="4s")
        await own.schedules.pause("s")
        await own.schedules.resume("s")
        begun = (await store.row("schedule/s")).at
        with monkeypatch.context() as patch, anyio.move_on_after(9):
            patch.setattr(Stored, "of", _unreadable)
            await workers(store.line(), []).run()
        stored = Stored.of(await store.row("schedule/s"))
        assert stored.decided(await store.row("schedule/s")) == begun
        with anyio.move_on_after(9):
            await workers(store.line(), seen).run()
    assert len(seen) == 18 // 4


def _unreadable(_row: Row) -> Stored:
    raise MissingExtra("cron", "schedules")


@in_virtual_time
async def test_workers_end_when_their_queues_are_empty_whatever_is_scheduled() -> None:
    store, seen = FakeStore(), list[tuple[str, int]]()
    async with workers(store, seen) as own:
        await own.schedule("s", "out", every="1d")
        await own.insert("out", 1, id="one")
        await own.run(until_empty=True)
    assert [id_ for id_, _ in seen] == ["one"]


@in_virtual_time
async def test_what_is_wrong_with_a_declaration_is_said_at_once() -> None:
    store = FakeStore()
    async with handle(store) as own:
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "one of every= and cron="),
            ({"every": "1h", "cron": "0 3 * * *"}, "one of every= and cron="),
            ({"cron": "@reboot"}, "@reboot"),
            ({"cron": "0 0 3 * * *"}, "six fields"),
            ({"every": "1h", "misfire": "no"}, "all, once, skip"),
            ({"every": "1h", "replace": True}, "key"),
        ]
        for options, why in cases:
            with pytest.raises(InvalidOption, match=why):
                await own.schedule("s", "out", **options)
        with pytest.raises(InvalidName):
            await own.schedule("a/b", "out", every="1h")
        with pytest.raises(UnsupportedOperation):
            await own.schedule("s", "out", every="1h", keep="1d")  # this store keeps no outcomes
        store.is_down = True
        with pytest.raises(StoreUnavailable):
            await own.schedule("s", "out", every="1h")
        store.is_down = False
        assert not await own.schedules.inspect_all()


@in_virtual_time
async def test_in_two_steps_it_would_double_what_a_death_in_between_has_inserted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: the tasks are inserted first, and the schedule is moved on in a step of its own."""
    whole = Keeper._parts

    async def halved(keeper: Keeper, claims: list[Claim]) -> list[Insert | Change]:
        parts = await whole(keeper, claims)
        inserts = tuple(part for part in parts if isinstance(part, Insert))
        await keeper._session.store.apply(Modify(inserts=inserts))
        await anyio.sleep(10)
        return [part for part in parts if isinstance(part, Change)]

    monkeypatch.setattr(Keeper, "_parts", halved)
    store, seen = FakeStore(), list[tuple[str, int]]()
    async with handle(store.line()) as own:
        await own.schedule("s", "out", every="1m")
        with anyio.move_on_after(25):  # five seconds after 01:47
            await workers(store.line(), seen).run()
        with anyio.move_on_after(30):
            await workers(store.line(), seen).run()
    assert [id_ for id_, _ in seen] == instants(47, 47)

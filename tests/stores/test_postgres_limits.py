"""Limits in addition to the interval in rows of Postgres: cases that random commands don't reach."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from random import Random

import psycopg
import pytest

from intervalq import errors, rules
from intervalq.rules import (
    STARTS,
    Advance,
    Configure,
    Drop,
    Finish,
    Inspect,
    Limit,
    Reclaim,
    Settings,
    Settled,
    State,
    Usage,
)
from intervalq.testing import CommandSource
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.postgres.queues import PostgresStore
from stores import postgres_sessions
from stores.postgres_sessions import sql

url = postgres_sessions.url

LIMITED = Settings(interval=1_000, limits=(Limit(100, 64_000), Limit(50, 640_000, "\u00e4\U0001d11e", 7)))
NEW = Advance(settings=LIMITED, nonce="n", take=3, units=((1, 2), (1,), ()))


# --- layouts ----------------------------------------------------------------------------------------


async def test_a_row_without_limits_has_nothing_of_them(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        for name, settings in (("limited", LIMITED), ("plain", Settings(interval=1_000))):
            await store.apply(name, Advance(settings=settings, nonce="n", take=1))
    rows = sql(url, "select limits is null, stepped from intervalq.queues order by name")
    assert rows == [(False, 0), (True, None)]


async def test_a_row_of_schema_2_goes_on(url: str) -> None:
    """These are the columns and functions of schema 2; other tests begin with schema 1."""
    async with aclosing(PostgresStore(url)) as store:
        before = await store.apply("q", Advance(settings=Settings(interval=1_000), nonce="n", take=1), 5)
        sql(
            url,
            "drop type intervalq._answer cascade;"
            "alter table intervalq.queues drop limits cascade, drop stepped;"
            "drop type intervalq._limit cascade; update intervalq.version set number = 2",
        )
    async with aclosing(PostgresStore(url)) as store:
        model, expected = rules.apply(before.state, Advance(generation="n", take=2), 6)
        assert await store.apply("q", Advance(generation="n", take=2), 6) == expected
        assert (await store.apply("q", Inspect(), 6)).state == model
        assert (await store.apply("new", NEW, 6)).dues
    assert sql(url, "select version, number from intervalq.queues, intervalq.version where name = 'q'") == [
        (rules.LAYOUT, postgres_queues.SCHEMA)
    ]


async def test_a_row_of_schema_3_gets_edges(url: str) -> None:
    """Its limits had no edge."""
    fixed = tuple(limit._replace(edge=5) for limit in LIMITED.limits)
    async with aclosing(PostgresStore(url)) as store:
        before = (await store.apply("q", NEW, 10**15)).state
        sql(
            url,
            "alter type intervalq._limit drop attribute edge cascade;update intervalq.version set number = 3",
        )
    async with aclosing(PostgresStore(url)) as store:
        for command in (Advance(generation="n", take=2), Configure(limits=fixed)):
            before, expected = rules.apply(before, command, 10**15 + 6)
            assert await store.apply("q", command, 10**15 + 6) == expected


HARM = [
    *("stepped = null", "stepped = -1", "stepped = 9007199254740992", "limits = '{}'"),
    *("limits[1] = null", "limits = array_fill(limits[1], array[17])"),
    *("limits = array_fill(limits[1], array[2], array[0])", "limits = array[limits]"),
    *(f"limits[2].{name} = null" for name in ("most", "window", "unit", "jitter", "used", "ahead")),
    *("limits[1].edge = -1", "limits[1].edge = 64000"),
    *("limits[1].most = 0", "limits[1].window = 0", "limits[1].jitter = -1"),
    *(f"limits[2].{name} = 9007199254740992" for name in ("most", "window", "jitter")),
    *(f"limits[1].used = '{cells}'" for cells in ("{1}", "{1,2}", "{1,0,1}", "{1,-1,1}", "{1,null,1}")),
    *(f"limits[2].used = '{cells}'" for cells in ("{2,1,0,1,1,0}", "{1,1,0,1,1,0}", "{null,1,1}")),
    *(
        f"limits[2].ahead = '{cells}'"
        for cells in ("{1}", "{2,1,1,1}", "{1,1,1,1}", "{{1,1}}", "[0:1]={1,1}")
    ),
    *("limits[2].ahead = '{1,9007199254740992}'", "limits[1].used = '{1,1,-9007199254740992}'"),
    "limits[1].used = array(select generate_series(1, 12003))",
    "limits[1].ahead = array(select generate_series(1, 8002))",
]


@pytest.mark.parametrize("harm", HARM)
async def test_limits_that_are_not_ours_are_refused_and_left_as_they_are(url: str, harm: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        sql(url, f"update intervalq.queues set {harm}")
        before = sql(url, "select q::text from intervalq.queues q")
        for command in (NEW, Inspect(), Finish(), Drop()):
            with pytest.raises(errors.CorruptState):
                await store.apply("q", command)
        assert sql(url, "select q::text from intervalq.queues q") == before


async def test_the_most_limits_and_cells_that_there_are(url: str) -> None:
    settings = Settings(interval=1_000, limits=tuple(Limit(9, 64_000, f"unit {n}") for n in range(16)))
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", Advance(settings=settings, nonce="n"), 10)
        sql(
            url,
            "update intervalq.queues set limits[16].ahead = array(select generate_series(20, 8019)),"
            "limits[15].used = array(select generate_series(20, 12019))",
        )
        answer = await store.apply("q", Inspect(), 10)
    assert answer.state is not None
    assert (len(answer.state.usage[15].ahead), len(answer.state.usage[14].used)) == (4_000, 4_000)
    assert State.from_dict(answer.state.to_dict()) == answer.state


# --- the rules --------------------------------------------------------------------------------------


async def test_cells_that_find_no_room_are_merged_as_by_the_rules(url: str) -> None:
    """There are new slots before, between, in and behind 4000 cells; some of them join 4000 used ones."""
    random = Random(1)
    async with aclosing(PostgresStore(url)) as store:
        for turn in range(12):
            queue, now = f"q{turn}", 1_000_000_000
            settings = Settings(interval=random.choice((1, 700, 1_000)), limits=(Limit(10**9, 64_000),))
            answer = await store.apply(queue, Advance(settings=settings, nonce="n"), now)
            assert answer.state is not None
            first, step = now + random.choice((-4_100_000, 0, 3_000)), random.choice((1_000, 2_000))
            cells = tuple((first + n * step, 1 + n % 3) for n in range(4_000))
            used = tuple((now - 20_000 + n * step // 50, 2, now + 7_000 - n) for n in range(4_000))
            model: State | None = replace(answer.state, usage=(Usage(used, cells),))
            sql(
                url,
                "update intervalq.queues set limits[1].ahead = %s, limits[1].used = %s where name = %s",
                [*chain.from_iterable(cells)],
                [*chain.from_iterable(used)],
                queue,
            )
            for number in range(6):
                now += random.choice((0, 5_000, 300_000))
                units = tuple((random.choice((0, 1, 5)),) for _ in range(60))
                slots = answer.taken[-3:]
                command = Advance(generation="n", take=60, units=units, release=slots, reach=5_000)
                model, answer = rules.apply(model, command, now)
                assert await store.apply(queue, command, now) == answer, (turn, number)
            for other in (Reclaim(), Configure(burst=3), Configure(burst=1), Inspect()):
                model, answer = rules.apply(model, other, now)
                assert await store.apply(queue, other, now) == answer, (turn, other)


async def test_units_that_count_for_longer_than_later_ones_come_after_them(url: str) -> None:
    """With a smaller burst, used units count for longer, even longer than units issued later."""
    settings, now = Settings(interval=1_000, burst=50, limits=(Limit(4, 64_000),)), 1_000_000_000
    model: State | None = None
    async with aclosing(PostgresStore(url)) as store:
        for command, later in (
            (Advance(settings=settings, nonce="n", take=2, reach=9_000), 0),
            (Configure(settings=settings, burst=1), 0),
            (Advance(generation="n", take=2), 1_000),
            (Advance(generation="n", take=3), 0),
        ):
            now += later
            model, expected = rules.apply(model, command, now)
            assert await store.apply("q", command, now) == expected
    assert model is not None
    (use,) = model.usage
    assert use.used[0][0] - model.held_total > use.ahead[0][0]


async def test_instants_before_1970_are_in_the_same_cells_as_by_the_rules(url: str) -> None:
    """Python rounds quotients down, Postgres towards zero."""
    seeds = [seed for seed in range(60) if CommandSource(seed).settings.limits][:12]
    steps = 0
    async with aclosing(PostgresStore(url)) as store:
        for seed in seeds:
            source, model = CommandSource(seed, start=-(10**15)), None
            for _ in range(25):
                command, now = source.next(model)
                model, expected = rules.apply(model, command, now)
                assert await store.apply(f"q{seed}", command, now) == expected, (seed, command)
                source.learn(expected)
                steps += any(end < 0 for use in (model.usage if model else ()) for end, _ in use.ahead)
    assert steps > 80


async def test_a_first_contact_with_other_limits_is_refused(url: str) -> None:
    one, other = LIMITED.limits
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        for limits in (
            (),
            (one,),
            (other, one),
            (one, other._replace(jitter=8)),
            (one._replace(unit="x"), other),
        ):
            settings = Settings(interval=1_000, limits=limits)
            assert (await store.apply("q", Advance(settings=settings, nonce="n", attach=True))).refused
        assert not (await store.apply("q", Advance(settings=LIMITED, nonce="n", attach=True))).refused


async def test_a_record_with_limits_lapses_only_when_its_units_are_old(url: str) -> None:
    settings = Settings(interval=1_000, ephemeral=True, limits=(Limit(9, 600_000_000, STARTS, 5),))
    command = Advance(settings=settings, nonce="n", take=1, units=((1,),))
    async with aclosing(PostgresStore(url)) as store:
        state = (await store.apply("q", command, 0)).state
        assert state is not None
        end = rules.lapses(rules.settle(state, 5))
        assert end > 600_000_000
        assert (await store.apply("q", Inspect(), end - 1)).state is not None
        assert (await store.apply("q", Inspect(), end)).state is None


async def test_units_that_no_record_holds_are_not_written(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        before = await store.apply("q", NEW, 1_000)
        for huge in (2**53, 2**63, 2**70):
            with pytest.raises(errors.CorruptState):
                await store.apply("q", Advance(generation="n", take=1, units=((huge,),)), 1_000)
        assert await store.apply("q", Inspect(), 1_000) == rules.apply(before.state, Inspect(), 1_000)[1]


async def test_a_slot_that_comes_sooner_takes_no_longer_the_more_slots_are_behind_it(url: str) -> None:
    """Where the last granted slot may be counted is found once for each use of it, not for each cell."""
    now, limit = 10**15, Limit(100, 64_000_000, "tokens")
    settings = Settings(interval=1_000_000, limits=(limit,))
    took = Advance(settings=settings, nonce="n", take=40, units=((90,),) * 40)
    async with aclosing(PostgresStore(url)) as store:
        answer = await store.apply("q", took, now)
        assert answer.state is not None
        first, second = answer.taken[:2]
        less = Settled(first.due, answer.state.lag, (-85,))
        await store.apply("q", Advance(generation="n", settled=(less,)), now + 2_000_000)
    asked = Advance(generation="n", slots=(second,), ahead=1_000_000).to_dict()
    with psycopg.connect(url) as connection:
        connection.execute("set track_functions = 'pl'; set plan_cache_mode = force_generic_plan")
        (done,) = connection.execute(
            postgres_queues._APPLY, ("q", json.dumps(asked), now + 2_000_000, rules.LAYOUT)
        ).fetchall()
        calls = "select funcname, calls from pg_stat_xact_user_functions"
        made: dict[str, int] = dict(connection.execute(calls).fetchall())
    assert done[0]["granted"] == [second.ticket]
    assert made["_sooner"] == 1
    assert made["_granted_end"] <= 2

"""Values, ids, keys, queues and times that users give; and generated ids."""

from __future__ import annotations

import json
import math
import pickle
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq.errors import InvalidInterval, InvalidName, InvalidOption, InvalidTask
from intervalq.tasks import Task, Tasks
from intervalq.tasks._claim import values as _values
from intervalq.tasks._spec import ids as _ids
from intervalq.tasks._spec.ids import new_id, new_ids
from intervalq.tasks._spec.outcome import dead_queue, living_queue
from intervalq.tasks.rules import Change, Insert, Row

tasks = Tasks("memory://")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
anything = st.recursive(
    scalars | st.binary() | st.sets(st.integers()) | st.complex_numbers() | st.dates() | st.decimals(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers() | st.binary(), inner)
    ),
    max_leaves=10,
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None, categories=["L", "N", "P", "S", "Z", "C"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(values)
def test_json_comes_back_as_it_was(value: object) -> None:
    written = tasks.new("q", value).json
    assert written.isascii()
    assert "\x00" not in written
    assert json.loads(written) == value


@given(anything)
def test_any_value_is_taken_or_refused_by_name(value: object) -> None:
    try:
        written = tasks.new("q", value).json
    except InvalidTask as error:
        assert "must be JSON" in str(error)
    else:
        json.loads(written)


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"x", object(), math.nan, math.inf, -math.inf, [math.nan], {"a": {b"x": 1}}, 1j, {(1,): 2}],
)  # fmt: skip
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidTask, match="must be JSON"):
        tasks.new("q", value)


def test_odd_texts_and_numbers_are_kept() -> None:
    for value in (
        "\x00",
        "\ud800",
        "\udfff\ud800",
        "\U0010ffff",
        "\u2028",
        10**4000,
        -(2**64),
        1e308,
        5e-324,
        "",
    ):
        assert json.loads(tasks.new("q", value).json) == value
    with pytest.raises(InvalidTask):
        tasks.new("q", 10**5000)  # more digits than Python would read


def test_values_within_each_other() -> None:
    def nested(depth: int, kind: str) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value] if kind == "list" else {'"[{': value}
        return value

    for kind in ("list", "dict"):
        assert json.loads(tasks.new("q", nested(200, kind)).json) == nested(200, kind)
        for depth in (201, 500, 5_000, 200_000):
            with pytest.raises(InvalidTask, match=r"nested deeper|must be JSON"):
                tasks.new("q", nested(depth, kind))
    wide = [[["]", "[", {"a": '\\"['}]] for _ in range(2_000)]
    assert json.loads(tasks.new("q", wide).json) == wide
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidTask):
        tasks.new("q", loop)


def test_a_deep_value_can_be_read_where_calls_are_deep() -> None:
    value: Any = 1
    for _ in range(200):
        value = [value]
    written = tasks.new("q", value).json

    def deep(left: int) -> Any:
        return deep(left - 1) if left else json.loads(written)

    assert deep(sys.getrecursionlimit() - 400) == value


def test_how_large_a_value_may_be() -> None:
    most = 256 * 1024
    assert len(tasks.new("q", "x" * (most - 2)).json) == most
    with pytest.raises(InvalidTask, match=f"{most + 1} bytes as JSON, but {most} are allowed"):
        tasks.new("q", "x" * (most - 1))
    with pytest.raises(InvalidTask, match="are allowed"):
        tasks.new("q", "é" * 50_000)  # six bytes each
    large = Tasks("memory://", max_bytes=1 << 20)
    assert len(large.new("q", "x" * 1_000_000).json) == 1_000_002
    for bad in (1, 1 << 29, True, "9"):
        with pytest.raises(InvalidOption):
            Tasks("memory://", max_bytes=bad)  # type: ignore[arg-type]


@given(
    st.text(max_size=140)
    | st.from_regex(r"[A-Za-z0-9._ -]{0,130}", fullmatch=True)
    | st.integers()
    | st.none()
)
def test_queue_names(name: object) -> None:
    try:
        assert _values.queue_name(name) == name
    except InvalidName:
        return
    assert isinstance(name, str)
    assert name.isascii()
    assert name[0].isalnum() or name[0] == "/"
    assert name == " ".join(name.split())  # so that no two names look alike
    assert len(dead_queue(name)) <= 128
    assert living_queue(dead_queue(name)) == living_queue(name)
    assert _values.queue_name(dead_queue(name))
    assert dead_queue(dead_queue(name)) == dead_queue(name)


@given(st.text(st.characters(codec=None), max_size=140) | st.integers() | st.binary())
def test_ids_and_keys(text: Any) -> None:
    for field in ("id", "key", "dedupe_key"):
        try:
            tasks.new("q", 1, **{field: text})
        except InvalidTask as error:
            assert f"{field}=" in str(error)
        else:
            assert isinstance(text, str)
            assert 1 <= len(text) <= 128
            text.encode()  # no surrogates
            assert min(text) >= " "


def test_ids_of_plain_tasks_cannot_be_taken() -> None:
    with pytest.raises(InvalidTask, match="plain tasks"):
        tasks.new("q", 1, id="plain-0-1")
    assert tasks.new("q", 1, id="plain").id == "plain"
    assert tasks.new("q", 1, key="plain-1").key == "plain-1"


class _Nowhere(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None


@given(
    st.floats() | st.integers() | st.datetimes() | st.booleans() | st.text()
    | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-14)), _Nowhere()]))
)  # fmt: skip
def test_times_are_taken_or_refused_by_name(at: Any) -> None:
    try:
        part = tasks.new("q", 1, at=at)
    except InvalidTask as error:
        assert "at=" in str(error)
        return
    seconds = at.timestamp() if isinstance(at, datetime) else at
    assert part.at == round(seconds * 1e6) or abs(part.at - seconds * 1e6) < 1e3  # type: ignore[operator]
    assert part.at is not None
    assert 0 <= part.at < 2**63


def test_times_that_are_none() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - what is refused
    nowhere = datetime(2030, 1, 1, tzinfo=_Nowhere())
    for at in (10**400, -(10**400), 1e308, 1e300, math.nan, math.inf, -1, "now", True, naive, nowhere):
        with pytest.raises(InvalidTask, match="at="):
            tasks.new("q", 1, at=at)  # type: ignore[arg-type]


def test_times() -> None:
    assert tasks.new("q", 1, at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)).at == 1_000_000
    assert tasks.new("q", 1, at=0).at == 0
    assert tasks.new("q", 1, at=1.5).at == 1_500_000
    assert tasks.new("q", 1, delay="2m").delay == 120_000_000
    assert tasks.new("q", 1).at is None


@given(st.floats() | st.integers() | st.text() | st.timedeltas() | st.booleans() | st.lists(st.integers()))
def test_durations_are_taken_or_refused_by_name(value: Any) -> None:
    for field in ("delay", "dedupe_for"):
        more: dict[str, Any] = {"dedupe_key": "k"} if field == "dedupe_for" else {}
        try:
            tasks.new("q", 1, **{field: value}, **more)
        except InvalidInterval as error:
            assert field in str(error)
    row = Row("i", 1, "q", 0, "1")
    try:
        from intervalq.tasks import Retry

        Task(row).change(delay=value)
        Retry("no", delay=value)
        Tasks("memory://", expiry=value)
    except InvalidInterval:
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"at": 1, "delay": 1},
        {"inbox": 1},
        {"replace": True},
        {"key": "k", "inbox": 1, "replace": True},
        {"key": "k", "inbox": -1},
        {"key": "k", "inbox": True},
        {"key": "k", "inbox": 1.0},
        {"key": "k", "inbox": 1 << 70},
        {"skip": True},
    ],
)
def test_options_that_go_with_others_or_not(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        tasks.new("q", 1, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"at": 1, "delay": 1},
        {"attempt": -1},
        {"attempt": True},
        {"attempt": 1.0},
        {"attempt": "1"},
        {"attempt": 1 << 31},
    ],
)
def test_changes_that_can_not_be(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Task(Row("i", 1, "q", 0, "1")).change(**options)


def test_all_that_can_be_changed() -> None:
    task = Task(Row("i", 1, "q", 0, "1", attempt=3))
    later = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert task.change(2, queue="r", at=later, attempt=0, error="e") == Change(
        "i", 1, queue="r", json="2", at=1_000_000, attempt=0, error="e"
    )
    assert task.change(None, delay=1) == Change("i", 1, json="null", delay=1_000_000)
    assert task.change(queue="r").attempt is task.change(queue="q.dead").attempt is None


def test_attempts_are_counted_anew_outside_of_a_dead_letter_queue() -> None:
    task = Task(Row("i", 1, "q.dead", 0, "1", attempt=5, error="e"))
    assert task.change(queue="r") == Change("i", 1, queue="r", attempt=0)
    assert task.change(queue="r", attempt=4).attempt == 4
    assert task.change(queue="r.dead").attempt is task.change(2).attempt is None


@pytest.mark.parametrize(
    ("length", "ending", "fits"), [(120, "", 1), (120, ".dead", 1), (121, "", 0), (128, "", 0)]
)
def test_the_length_of_a_queues_name(length: int, ending: str, fits: int) -> None:
    name = "q" * length + ending
    if fits:
        assert tasks.new(name, 1).queue == name
        return
    with pytest.raises(InvalidName, match="use 1 to 120 of") as caught:
        tasks.new(name, 1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_all_that_a_task_may_have() -> None:
    part = tasks.new("q", [1], id="i", key="k", at=2, dedupe_key="d", dedupe_for=3, inbox=4, skip=True)
    assert part == Insert(
        "q", "[1]", "i", "k", 2_000_000, dedupe="d", dedupe_for=3_000_000, inbox=4, skip=True
    )


@given(st.text(st.characters(codec=None)))
def test_what_is_kept_of_an_error_can_be_stored(message: str) -> None:
    kept = _values.error_text(message)
    assert len(kept) <= 4_000
    kept.encode()
    assert "\x00" not in kept
    _values.error_text(ValueError(message)).encode()


# --- ids ---------------------------------------------------------------------------------------------


def test_ids_are_uuids_of_version_seven_that_rise() -> None:
    ids = new_ids(20_000)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    for id_ in ids[::100]:
        parsed = uuid.UUID(id_)
        assert str(parsed) == id_
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert len({id_[-10:] for id_ in ids}) > 19_990  # they can't be guessed


def test_ids_carry_the_time_and_rise_though_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5_000_000_000_000_000_000]
    monkeypatch.setattr("intervalq.tasks._spec.ids.time.time_ns", lambda: clock[0])
    monkeypatch.setattr(_ids, "_last", _ids._Last())
    ids = []
    for step in (0, 10**6, -(10**12), 0, 1, 10**9, 2 * 10**12, 10**6):
        clock[0] += step
        ids += new_ids(3)
    assert ids == sorted(set(ids))
    assert int(ids[0].replace("-", "")[:12], 16) == 5_000_000_000_000
    assert int(ids[-1].replace("-", "")[:12], 16) == clock[0] // 1_000_000


def test_ids_of_several_threads_are_different() -> None:
    made: list[list[str]] = []
    begin = threading.Barrier(8, timeout=60)

    def make() -> None:
        begin.wait()
        ids = new_ids(5_000)
        assert ids == sorted(ids)
        made.append(ids)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id_ for ids in made for id_ in ids}) == 40_000
    assert new_id() > made[0][0]

"""Specs of pipelines: errors are reported before Spark starts, with their place and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from intervalq.errors import InvalidOption
from intervalq.pipeline import read_spec
from intervalq.pipeline._function import Function
from intervalq.pipeline._run import stage_of
from spark.pipelines import SPEC, Small


def test_a_spec_says_all_that_is_needed(small: Small) -> None:
    spec = read_spec(small.file)
    assert (spec.name, spec.output) == ("visits", str(small.folder / "out"))
    assert (spec.input.format, spec.input.path) == ("json", f"file://{small.folder}/visits.jsonl")
    assert spec.store == f"sqlite://{small.folder}/state.db"
    assert spec.interval == 0.001
    assert spec.queue.name == "visits"
    assert spec.call.function.call.__name__ == "fetch"
    assert callable(stage_of(spec))
    assert str(small.folder) not in sys.path


def test_costs_limits_and_columns_reach_the_stage(small: Small) -> None:
    (small.folder / "calls.py").write_text(
        "def cost(row): return {'tokens': row['n']}\ndef took(answer): return None\ndef fetch(row, ctx): ..."
    )
    more = 'columns = ["n"]\ncost = "calls:cost"\nsettle = "calls:took"'
    spec = SPEC.replace("concurrency = 4", more).replace(
        'interval = "1ms"', 'rate = "9/s"\nlimits = ["90 tokens/min"]'
    )
    small.file.write_text(spec)
    found = read_spec(small.file)
    assert found.call.columns == ("n",)
    assert isinstance(found.call.cost, Function)
    assert found.call.cost.call({"n": 2}) == {"tokens": 2}
    assert found.call.settle is not None
    assert [limit.most for limit in found.queue._options.limits] == [90]
    assert callable(stage_of(found))
    small.file.write_text(spec.replace('"calls:cost"', "{ tokens = 3 }"))
    assert read_spec(small.file).call.cost == {"tokens": 3}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[pipeline]", "pipeline]", "is not TOML"),
        ("[pipeline]", "[[pipeline]]", "[pipeline] must be a table"),
        ("[queue]", "[queues]", "[queues] is not known; the tables are [pipeline], "),
        ('[pipeline]\nname = "visits"\noutput = "out"', "", "there is no table [pipeline]: it has"),
        ('name = "visits"', "", "[pipeline] name is missing"),
        ('name = "visits"', 'name = "a b"', "[pipeline] name is refused: 'a b' is not a queue name"),
        ('name = "visits"', 'nam = "visits"', "[pipeline] nam is not known; the fields of [pipeline] are"),
        ('output = "out"', "output = 3", "[pipeline] output = 3 must be text"),
        ('output = "out"', 'output = "o*"', "must be a path without"),
        ('output = "out"', 'output = "out"\nformat = "csv"', "[pipeline] format = 'csv' must be one of "),
        ('output = "out"', 'output = "out"\nformat = "iceberg"', "[pipeline] tables is missing: Iceberg"),
        ('output = "out"', 'output = "out"\ntables = "a.b"', '[pipeline] tables needs format = "delta"'),
        (
            'output = "out"', 'output = "out"\nformat = "delta"\ntables = "a b"',
            "[pipeline] tables = 'a b' must be the name of a schema",
        ),
        ('"visits.jsonl"', '"visits.txt"', "[input] format is missing"),
        ('"visits.jsonl"', '"gone.jsonl"', "nothing is there: check the path"),
        ('key = "id"', 'key = "id"\nformat = "xml"', "[input] format = 'xml' must be one of"),
        ('key = "id"', 'key = ""', "[input] key is missing"),
        ("positive =", "key_missing =", "[input.require] 'key_missing' can't be the name of a condition"),
        ('"n >= 0"', "7", "[input.require] positive = 7 must be text"),
        ('"calls:fetch"', '"calls"', '\'calls\' is not "module:name"'),
        ('"calls:fetch"', '"gone:fetch"', "there is no module gone"),
        ('"calls:fetch"', '"calls:gone"', "module calls has no gone"),
        ('"calls:fetch"', '"calls:HERE"', "calls:HERE is not a function"),
        ('"calls:fetch"', '"calls:HELD"', "[call] "),  # accepts no row
        ("concurrency = 4", "concurrency = 0", "[call] concurrency is refused: concurrency=0 must be"),
        ("concurrency = 4", "concurrency = true", "[call] concurrency = True must be a whole number"),
        ("concurrency = 4", "columns = []", "[call] columns = [] must be a list of texts"),
        ("concurrency = 4", "cost = 1.5", "[call] cost = 1.5 must be a number, a table"),
        ("concurrency = 4", "cost = 0", "[call] cost=0 must be"),
        ("concurrency = 4", "cost = { tokens = 2 }", "[call] cost={'tokens': 2}: this handle has no limit"),
        ("concurrency = 4", 'settle = "calls:gone"', "module calls has no gone"),
        ('interval = "1ms"', 'limits = ["9/min"]', "[queue] limits need a pace beside them"),
        ('interval = "1ms"', 'rate = "1/s"\nlimits = ["soon"]', "[queue] limits is refused: 'soon' is"),
        ("concurrency = 4", "window = 2", "[call] window=2 must be"),
        ("concurrency = 4", 'latency = "soon"', "[call] latency is refused: 'soon' is not a duration"),
        ("concurrency = 4", 'on_unknown = "ask"', "[call] on_unknown = 'ask' must be one of retry, fail"),
        ('interval = "1ms"', 'rate = "soon"', "[queue] rate is refused: 'soon' is not a rate"),
        ('interval = "1ms"', 'interval = "1ms"\nrate = "1/s"', "[queue] rate and interval and burst "),
        ("burst = 30000", "burst = 0", "[queue] burst is refused: burst=0 must be a whole number"),
        ('"state.db"', '"memory://"', "[queue] store is refused: memory:// belongs to one process"),
        ('"state.db"', '"redis:/me:secret@host"', "[queue] store"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place_and_the_remedy(
    small: Small, old: str, new: str, message: str
) -> None:
    assert SPEC.count(old) == 1
    small.file.write_text(SPEC.replace(old, new))
    with pytest.raises(InvalidOption) as raised:
        stage_of(read_spec(small.file))
    assert str(raised.value).startswith("visits.toml: ")
    assert message in str(raised.value)


def test_a_module_that_fails_is_the_functions_error(small: Small) -> None:
    (small.folder / "broken_calls.py").write_text("1 / 0")
    small.file.write_text(SPEC.replace("calls:fetch", "broken_calls:fetch"))
    with pytest.raises(InvalidOption, match=r"\[call\] function is refused: .* ZeroDivisionError"):
        read_spec(small.file)


def test_each_spec_has_the_module_of_its_own_folder(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(read_spec(Small(tmp_path / name).file).call.function.call)
    assert [Path(one.__code__.co_filename).parent.name for one in found] == ["a", "b"]

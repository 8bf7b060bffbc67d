"""The example of a pipeline, without Spark: its rows, its API, and its final message."""

from __future__ import annotations

import gzip
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import debian_packages as example
import debian_packages_list
from debian_packages_api import PackagesAPI

LIST = """\
Package: a
Version: 1.0
Installed-Size: 7

Package: b
Description: of two lines
 the second: one
Version: 2

Package: a
Version: 3
"""


def test_rows_are_those_of_the_longest_list_that_has_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian_packages_list, "_LISTS", tmp_path)
    monkeypatch.setattr(debian_packages_list, "_STATUS", tmp_path / "status")
    (tmp_path / "x_Packages.gz").write_bytes(gzip.compress(LIST.encode()))
    rows, source = debian_packages_list.packages(2)
    assert rows == [{"name": "a", "version": "1.0", "size": 7}, {"name": "b", "version": "2"}]
    assert source.endswith("x_Packages.gz")
    rows, source = debian_packages_list.packages(3)  # a comes once
    assert (len(rows), source) == (3, "a made-up list")
    assert rows[0].keys() == {"name", "version", "section", "size"}


def test_the_api_counts_and_refuses() -> None:
    with PackagesAPI(limit=2) as api:
        for name in ("a", "b"):
            with urllib.request.urlopen(f"{api.url}/packages/{name}?size=2048") as answer:
                assert b'"megabytes": 2.0' in answer.read()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{api.url}/packages/b")
        refused.value.close()
        assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "1")
        report = api.report()
    assert (report["calls"], report["rows"], report["repeated"], report["refused"]) == (3, 2, 1, 1)
    assert report["most_in_a_second"] == 3


@pytest.mark.parametrize(
    ("repeated", "refused", "results", "killed", "code"),
    [(0, 0, 9, False, 0), (1, 0, 9, False, 1), (1, 0, 9, True, 0), (0, 1, 9, True, 1), (0, 0, 8, True, 1)],
)
def test_the_verdict(repeated: int, refused: int, results: int, killed: bool, code: int) -> None:
    report = {"calls": 9 + repeated, "rows": 9, "repeated": repeated, "refused": refused, "rate": 1.0}
    report |= {"most_in_a_second": 1, "gap_p1": 1.0, "gap_p50": 1.0, "gap_max": 1.0}
    assert example._verdict(report, results, 1, killed=killed) == code

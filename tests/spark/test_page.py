"""The page of a pipeline's run, made from figures; `test_pipeline` makes one from a real run."""

from __future__ import annotations

import re
from typing import Any

from intervalq.pipeline._page import page

SUMMARY: dict[str, Any] = {
    "pipeline": "visits", "ok": False, "stopped": False, "rows": 1_250, "duplicates": 2,
    "rejected": {"<b>positive</b>": 3}, "before": 1_000, "restarts": 1, "results": 230, "failed": 15,
    "passes": [
        {"reasons": [
            {"rows": 12, "reason": "Error: <script>", "key": "k'6", "error": "Error: <script>alert(1)"},
            {"rows": 3, "reason": "Timeout", "key": None, "error": "Timeout"},
        ]}
    ],
}  # fmt: skip
CALLS: list[dict[str, Any]] = [
    {
        "pass": f"2026112{day}T000000Z-abcdef", "rows": 1_000, "results": 990, "failed": 10, "calls": 1_100,
        "saved": 40, "taken_over": 7, "first": 1_795_000_000.0, "last": 1_795_000_300.0,
        "latency": {"p50": 0.12, "p90": 0.25, "p99": 0.9, "most": 2.0},
    }
    for day in (1, 2)
]  # fmt: skip


def _text(made: str) -> str:
    return re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", made, flags=re.DOTALL))


def test_a_page_says_what_happened_before_it_judges_the_pace() -> None:
    made = page(SUMMARY, CALLS, None)
    told = " ".join(_text(made).split())
    for part in (
        "Pipeline visits: 18 rows have no result",
        "1,250 rows in the input, 1,000 of them had results before; 2 duplicates; 1 interrupted pass",
        "230 results of this run 15 rows failed 3 rows rejected",
        "2,200 calls paid for, retries included, by all runs 80 calls saved by the ledger after restarts",
        "14 rows taken over from tasks that died",
        "12 Error: &lt;script&gt; k&#x27;6 Error: &lt;script&gt;alert(1)",
        "3 &lt;b&gt;positive&lt;/b&gt;",
        "5m00s 990 10 1,100 40 7 120ms 250ms 900ms 2s",
    ):
        assert part in told
    assert "<script" not in made
    assert "<b>positive" not in made
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)|@import|<link""", made), "it loads nothing"
    assert "prefers-color-scheme: dark" in made
    assert "width=device-width" in made


def test_a_page_of_a_run_that_stopped_says_why() -> None:
    stopped: dict[str, Any] = {
        **SUMMARY, "passes": [], "results": 0, "failed": 2, "kept": 1_007, "error": "2 rows <b>failed",
        "reasons": [{"rows": 2, "reason": "no 'x'", "key": "k1", "error": "no 'x' here"}],
    }  # fmt: skip
    told = " ".join(_text(page(stopped, CALLS, None)).split())
    for part in (
        "Pipeline visits: no more rows were called",
        "2 rows &lt;b&gt;failed",
        "1,007 results kept for the next run 2 rows failed",
        "2 no &#x27;x&#x27; k1 no &#x27;x&#x27; here",
    ):
        assert part in told
    assert "results of this run" not in told


def test_a_page_of_a_run_without_troubles_and_of_an_audit_alone() -> None:
    fine = SUMMARY | {"ok": True, "rejected": {}, "failed": 0, "passes": [], "restarts": 0, "duplicates": 0}
    told = _text(page(fine, CALLS, None))
    assert "every row has a result" in told
    assert "Why rows failed" not in told
    assert "rows failed" in told
    alone = _text(page({"pipeline": "visits"}, CALLS[:1], None))
    assert "1,100" in alone
    assert "results of this run" not in alone
    assert "audit found violations" in _text(page(fine | {"ok": False}, [], None))

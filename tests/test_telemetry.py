"""OpenTelemetry sees what queues and tasks do, and a real Prometheus scrapes it.

The program runs apart: once a process uses OpenTelemetry, all of its queues do.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from intervalq._observe import names

PROGRAM = Path(__file__).parent / "telemetry_program.py"
BOARD = Path(__file__).parent.parent / "docs" / "grafana.json"


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def points(seen: dict[str, Any], metric: names.Name) -> dict[tuple[str, ...], Any]:
    """The points of a metric, by the values of their attributes."""
    [found] = [one for one in seen["metrics"] if one["name"] == metric.name]
    assert found["unit"] == metric.unit
    return {
        tuple(point["attributes"].values()): point.get("value", point.get("count"))
        for point in found["data"]["data_points"]
    }


def test_metrics_count_what_happened(seen: dict[str, Any]) -> None:
    starts = {("api",): 4, ("limited",): 1, ("plain",): 2, ("late",): 1, ("served",): 1}
    assert points(seen, names.STARTS) == starts
    assert points(seen, names.WAIT) == starts
    assert points(seen, names.LATENESS) == starts
    assert points(seen, names.REFUSED) == {("limited",): 1}
    assert points(seen, names.TASKS) == {
        ("cars", "failed"): 1, ("cars", "done"): 2, ("mails", "done"): 2
    }  # fmt: skip


def test_jobs_are_spans_from_waiting_over_start_to_end(seen: dict[str, Any]) -> None:
    jobs = [span for span in seen["spans"] if span["name"] == names.JOB_SPAN]
    assert sorted(span["attributes"][names.QUEUE] for span in jobs) == [
        "api:ada", "api:ada", "api:ada", "api:bob", "late", "limited", "plain", "plain", "served"
    ]  # fmt: skip
    assert all(span["events"][0] == names.BEGAN and span["ended"] for span in jobs)
    assert all(span["attributes"][names.TICKET] > 0 for span in jobs)


def test_jobs_that_fail_are_spans_with_the_error(seen: dict[str, Any]) -> None:
    jobs = [span for span in seen["spans"] if span["name"] == names.JOB_SPAN]
    failed = {span["attributes"][names.QUEUE]: span for span in jobs if span["failed"]}
    assert {queue: span["failed"] for queue, span in failed.items()} == {
        "api:ada": "OSError: the garage is full",
        "late": "OSError: the garage is full",
        "limited": "RefusedError: ",
        "plain": "OSError: the garage is full",
    }
    assert all(len(span["events"]) == (2 if span["failed"] else 1) for span in jobs)
    assert all(span["events"][1:] == ["exception"] for span in failed.values())


def test_a_task_has_one_trace_to_which_its_insert_links(seen: dict[str, Any]) -> None:
    spans = {name: [span for span in seen["spans"] if span["name"] == name] for name in (
        "request", "paint", names.INSERT_SPAN, names.TASK_SPAN,
    )}  # fmt: skip
    [request] = spans["request"]
    inserts = [span for span in spans[names.INSERT_SPAN] if span["attributes"][names.QUEUE] == "cars"]
    assert {span["trace"] for span in inserts} == {request["trace"]}
    assert {span["parent"] for span in inserts} == {request["id"]}
    for insert in inserts:
        task = insert["attributes"][names.TASK]
        [trace] = insert["links"]
        assert trace == UUID(task).hex
        attempts = [span for span in spans[names.TASK_SPAN] if span["attributes"][names.TASK] == task]
        assert {span["trace"] for span in attempts} == {trace}
        painted = [span for span in spans["paint"] if span["trace"] == trace]
        assert [span["parent"] for span in painted] == [span["id"] for span in attempts]
    tried = [span for span in spans[names.TASK_SPAN] if span["attributes"][names.QUEUE] == "cars"]
    assert sorted(span["attributes"][names.ATTEMPT] for span in tried) == [1, 1, 2]
    assert sum(bool(span["failed"]) for span in tried) == 1


def test_a_chunk_is_a_span_that_links_to_its_other_tasks(seen: dict[str, Any]) -> None:
    [chunk] = [
        span
        for span in seen["spans"]
        if span["name"] == names.TASK_SPAN and span["attributes"][names.QUEUE] == "mails"
    ]
    assert len(chunk["links"]) == 1
    assert chunk["links"][0] != chunk["trace"]


def test_a_service_counts_its_requests_and_what_waits(seen: dict[str, Any]) -> None:
    """Requests that went away are counted when they have ended, also those that waited."""
    apply = "intervalq.v1.Store/Apply"
    counts = points(seen, names.REQUESTS)
    assert counts[f"{apply} tasks Modify", "OK"] == 2
    assert counts["PUT /v1/queues/{queue}", "200"] == 1
    assert counts["POST /v1/queues/{queue}/slot", "200"] == 1
    assert counts["POST /v1/tasks/count", "400"] == 1
    assert sum(count for (verb, _), count in counts.items() if verb == "POST /api/v0/claim/wait") == 1
    waiting = {one["attributes"][names.KIND]: one["value"] for one in seen["waiting"]}
    assert waiting == {"claim": 1, "slot": 1, "stream": 1}
    assert points(seen, names.WAITING) == {("claim",): 0, ("slot",): 0, ("stream",): 0}


def test_without_opentelemetry_nothing_of_it_is_imported() -> None:
    code = """
import sys
from intervalq import sync
from intervalq.tasks.sync import Tasks
sync.IntervalQueue("q", rate="100/s", store="memory://").run(int)
Tasks("memory://").insert("q", 1)
print([name for name in sys.modules if "telemetry" in name and name != "intervalq._observe.telemetry"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def exported(metric: names.Name) -> str:
    """What OpenTelemetry's exporter calls a metric for Prometheus."""
    name = metric.name.replace(".", "_")
    return {"s": f"{name}_seconds_bucket"}.get(metric.unit, f"{name}_total")


def test_the_board_shows_metrics_that_exist() -> None:
    board = json.loads(BOARD.read_text())
    queries = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    known = (names.STARTS, names.UNUSED, names.REFUSED, names.WAIT, names.LATENESS, names.TASKS)
    assert all(exported(metric) in queries for metric in known), queries


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus")
def test_a_real_prometheus_scrapes_it_and_answers_the_queries_of_the_board(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, PROGRAM, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    port = program.stdout.readline().strip()
    scrapes = {
        "job_name": "q",
        "scrape_interval": "1s",
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrapes]}))
    prometheus = subprocess.Popen(
        ["prometheus", "--config.file=prometheus.yml", "--web.listen-address=127.0.0.1:0",
         f"--storage.tsdb.path={tmp_path}/data"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert prometheus.stderr is not None
        said = ""
        listens: list[str] = []
        while not (listens and "Server is ready" in said):  # on a busy machine, in either order
            said += prometheus.stderr.readline()
            listens = re.findall(r"Listening on[^\n]* address=(\S+)", said)
        [address] = listens

        def query(text: str) -> list[dict[str, Any]]:
            asked = urllib.parse.urlencode({"query": text})
            with urllib.request.urlopen(f"http://{address}/api/v1/query?{asked}") as answer:
                found = json.load(answer)
            assert found["status"] == "success", found
            result: list[dict[str, Any]] = found["data"]["result"]
            return result

        starts = exported(names.STARTS)
        while not (found := query(starts)):
            pass
        counted = {one["metric"]["intervalq_queue"]: int(one["value"][1]) for one in found}
        assert counted == {"api": 4, "limited": 1}
        [done] = query(f'{exported(names.TASKS)}{{intervalq_queue="cars",intervalq_outcome="done"}}')
        assert done["value"][1] == "2"
        for panel in json.loads(BOARD.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query(target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*"))
    finally:
        for process in (prometheus, program):
            process.kill()
            process.communicate()

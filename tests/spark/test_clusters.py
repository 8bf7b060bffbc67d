"""The helpers of the Spark tests themselves: the cluster, Connect, programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import order
import servers
from spark import clusters, processes
from spark.clusters import Cluster, Connect
from spark.programs import Program, environment

ZONE = "spark.sql.session.timeZone"
WORKERS = Path(__file__).parent / "program_workers.py"


def test_files_with_a_jvm_are_run_by_one_worker(request: pytest.FixtureRequest) -> None:
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    files = {f"spark/{item.path.name}" for item in tests if "java_options" in item.fixturenames}
    assert files <= {*order.SPARK}


def test_both_executors_work_and_all_may_be_killed(standalone_cluster: Cluster) -> None:
    program = standalone_cluster.submit(WORKERS, "2", "stay", conf={ZONE: "Asia/Tokyo"}, store="memory://")
    try:
        program.until_printed("}\n")
        answer = json.loads(program.stdout)
        reported = answer["workers"]
        assert answer[ZONE] == "Asia/Tokyo"
        assert [(one["rows"], one["store"]) for one in reported] == [(10, "memory://")] * 2
        first, second = program.executors()
        assert {first.host, second.host} == set(clusters.HOSTS)
        assert first.pid != second.pid
        mine, others = first.workers(), second.workers()
        assert sorted(one.pid for one in mine + others) == sorted(one["pid"] for one in reported)
        mine[0].kill()
        servers.until(lambda: not mine[0].lives)
        second.kill()
        servers.until(lambda: not second.lives and not others[0].lives)
        program.until(lambda: len(program.executors()) == 2, "another executor")  # the cluster replaces it
        assert second.pid not in {one.pid for one in program.executors()}
        program.kill()
        servers.until(lambda: not program.left())
    finally:
        program.close()


def test_a_connect_client(connect_server: Connect) -> None:
    program = connect_server.submit(WORKERS, "2")
    try:
        answer = json.loads(program.result())
    finally:
        program.close()
    reported = answer["workers"]
    assert [one["rows"] for one in reported] == [10, 10]
    assert answer[ZONE] == "UTC"
    assert len({one["pid"] for one in reported}) == 2


def test_a_program_ends_with_the_test_run(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text("import threading; print('here', flush=True); threading.Event().wait()")
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from spark.programs import Program, environment\n"
        "program = Program(Path(sys.argv[1]), (), environment())\n"
        "program.until_printed('here')\n"
        "print(program.mark, flush=True)\n"
        "program.wait()\n"
    )
    run = subprocess.Popen([sys.executable, starter, script], stdout=subprocess.PIPE, env=environment())
    assert run.stdout is not None
    mark = run.stdout.readline().decode().strip()
    assert len(processes.of_program(mark)) >= 2  # the sleeper, and the process that watches it
    run.kill()
    run.communicate()
    servers.until(lambda: not processes.of_program(mark))


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("print('so far'); raise SystemExit('no further')")
    program = Program(script, (), environment())
    try:
        ended = program.wait()
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, "so far\n", "no further\n")
        with pytest.raises(AssertionError, match="no further"):
            program.result()
    finally:
        program.close()

"""In which order the workers get the files of tests, and which files go to the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SPARK: Final = (
    "spark/test_pipeline.py",
    "spark/test_calls_on_a_cluster.py",
    "spark/test_audit.py",
    "spark/test_audit_clocks.py",
    "spark/test_paced.py",
    "spark/test_clusters.py",
    "spark/test_source.py",
    "spark/test_session.py",
    "spark/test_versions.py",
    "spark/test_pipeline_answers.py",
    "spark/test_tables.py",
    "spark/test_task_mode.py",
)
"""What needs a JVM goes to one worker, which starts the session, the cluster and the Connect server once."""

LONG: Final = (
    "cli/test_cli_tasks.py",
    "test_model_check.py",
    "faults/test_token_storm.py",
    *SPARK,
    "faults/test_clocks.py",
    "test_simulation.py",
    "cli/test_cli_run.py",
    "stores/test_postgres_tasks.py",
    "faults/test_proxy.py",
    "test_docs.py",
    "test_site.py",
    "test_benchmarks_busy.py",
    "faults/test_nats_placement.py",
    "stores/test_postgres_tasks_plans.py",
    "faults/test_server_postgres.py",
    "cli/test_cli_help.py",
    "cli/test_cli_admin.py",
    "faults/test_server_redis.py",
    "faults/test_storm.py",
    "faults/test_power.py",
    "faults/test_proxy_queue.py",
    "stores/test_sqlite_tasks.py",
    "stores/test_redis_tasks.py",
    "stores/test_nats_tasks.py",
    "faults/test_server_nats.py",
    "demo/test_mapreduce.py",
    "tasks/test_task_simulation.py",
    "cli/test_cli_work.py",
    "faults/test_server_files.py",
    "test_benchmarks_run.py",
    "faults/test_task_storm.py",
    "cli/test_cli_run_ends.py",
    "test_processes.py",
    "test_benchmarks_tasks.py",
    "stores/test_redis.py",
    "stores/test_postgres.py",
    "test_rules_laws.py",
    "faults/test_partitions.py",
    "test_soak.py",
    "service/test_remote_suites.py",
    "service/test_pacing_fuzz.py",
    "service/test_service_page.py",
    "spark/test_java.py",
    "test_keyed_processes.py",
    "test_keyed_shares.py",
    "test_auto_rate.py",
    "test_keyed_bugs.py",
    "test_keyed_own_limits.py",
    "test_layout.py",
    "test_telemetry.py",
)
"""The files that take longest come first: if a long one runs last, the other processors idle meanwhile.

Files that keep all processors busy (the model, the simulations) are spread among files that mostly wait.
"""

_HERE: Final = Path(__file__).parent
_RANKS: Final = {_HERE / name: number for number, name in enumerate(LONG)}


def rank(item: pytest.Item) -> int:
    """Tests of a lower rank come first."""
    return _RANKS.get(item.path, len(_RANKS))


class Scheduling(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """Gives whole files to the workers, and those with a JVM all to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "spark" if file.endswith(SPARK) else file


def schedule(config: pytest.Config, log: Producer) -> Scheduling | None:
    """What distributes the tests, if it is by files."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None

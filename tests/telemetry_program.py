"""A program that uses queues and tasks with OpenTelemetry's SDK, and prints what that has seen.

With a port, it serves its metrics there for Prometheus until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import anyio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from intervalq import IntervalQueue, sync
from intervalq._queue.threads import opens_here
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq.tasks import Claim, Tasks


class RefusedError(Exception):
    pass


def fail(when: bool) -> None:
    if when:
        raise OSError("the garage is full")


def asks_for(outcome: object) -> float | None:
    return 0.001 if isinstance(outcome, RefusedError) else None


async def use() -> None:
    tracer = trace.get_tracer("program")
    queue = IntervalQueue("api", rate="200/s", each="200/s", store="memory://")

    async def refused() -> None:
        raise RefusedError

    async with queue:  # a plain function may be too late for its slot, and count once all the same
        for number in range(3):
            with suppress(OSError):
                async with queue["ada"].slot():
                    fail(number == 2)
        await (await queue["bob"].add(int))
    limited = IntervalQueue("limited", rate="200/s", store="memory://", retry_after=asks_for)
    async with limited:
        with suppress(RefusedError):
            await limited.run(refused)
    tasks = Tasks("memory://")
    failed: list[str] = []

    @tasks.worker("cars", backoff=0.01)
    def paint(task: Claim) -> None:
        with tracer.start_as_current_span("paint"):
            if task.value == "red" and not failed:
                failed.append(task.id)
                raise OSError

    @tasks.worker("mails", batch=10, within="10ms")
    async def send(given: list[Claim]) -> None:
        assert len(given) == 2

    async with tasks:
        with tracer.start_as_current_span("request"):
            for color in ("red", "blue"):
                await tasks.insert("cars", color)
        await tasks.insert("mails", 1, id="one")
        await tasks.insert("mails", 2, id="two")
        await tasks.run(until_empty=True)


def use_plainly() -> None:
    queue = sync.IntervalQueue("plain", rate="200/s", store="memory://")
    try:
        fail(when=True)
    except OSError:  # a job that goes well in this handler has not failed
        queue.run(int)
    with suppress(OSError):
        queue.run(partial(fail, when=True))
    queue.close()


def use_late() -> None:
    """A thread comes too late for its slot, and its job begins in a later one, and fails."""
    waits = [False]

    def late(shard: Shard, grant: Grant) -> bool:
        return opens_here(shard, grant) and waits.pop() if waits else opens_here(shard, grant)

    with (
        patch.object(sync, "opens_here", late),
        sync.IntervalQueue("late", rate="9/s", store="memory://") as queue,
        suppress(OSError),
    ):
        queue.run(partial(fail, when=True))


def shown(spans: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": span.name,
            "trace": f"{span.context.trace_id:032x}",
            "id": f"{span.context.span_id:016x}",
            "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
            "attributes": dict(span.attributes),
            "events": [event.name for event in span.events],
            "links": [f"{link.context.trace_id:032x}" for link in span.links],
            "failed": not span.status.is_ok and span.status.description,
            "ended": span.end_time >= span.start_time,
        }
        for span in spans
    ]


def main() -> None:
    if len(sys.argv) > 1:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import start_http_server

        metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
        server, _ = start_http_server(0, "127.0.0.1")
        anyio.run(use)
        print(server.server_port, flush=True)
        sys.stdin.read()
        return
    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    metrics.set_meter_provider(MeterProvider([reader]))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    anyio.run(use)
    use_plainly()
    use_late()
    data = reader.get_metrics_data()
    found = [] if data is None else json.loads(data.to_json())["resource_metrics"][0]["scope_metrics"]
    print(json.dumps({"metrics": found[0]["metrics"], "spans": shown(exporter.get_finished_spans())}))


if __name__ == "__main__":
    main()

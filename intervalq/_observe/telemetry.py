"""OpenTelemetry: metrics and spans of queues and tasks, through its API, if the program uses it.

This is decided when a queue or a worker is first used: a program that sends telemetry has imported the API by
then.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, wraps
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from intervalq._keys.names import shown
from intervalq._observe import names
from intervalq._observe.starts import observe, quietly
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

_SPAN_ID: Final = 2**64 - 1


def telemetry() -> Telemetry | None:
    """The telemetry of this process; None: the program doesn't use OpenTelemetry."""
    return _made() if "opentelemetry.metrics" in sys.modules or "opentelemetry.trace" in sys.modules else None


@cache
def _made() -> Telemetry:
    return Telemetry()


def traced(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a worker's function so that each call is a span in the trace of its task, if there are traces."""
    found = telemetry()
    return function if found is None else found.traced(function)


class Telemetry:
    """The instruments. Without a provider in the program, they do nothing."""

    def __init__(self) -> None:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - only if the program has imported it

        meter = metrics.get_meter("intervalq")
        self.trace = trace
        self.tracer = trace.get_tracer("intervalq")
        self.starts = meter.create_counter(*names.STARTS)
        self.unused = meter.create_counter(*names.UNUSED)
        self.refused = meter.create_counter(*names.REFUSED)
        self.tasks = meter.create_counter(*names.TASKS)
        self.wait = meter.create_histogram(*names.WAIT, explicit_bucket_boundaries_advisory=names.WAITS)
        self.lateness = meter.create_histogram(
            *names.LATENESS, explicit_bucket_boundaries_advisory=names.LATE
        )
        self.requests = meter.create_histogram(
            *names.REQUESTS, explicit_bucket_boundaries_advisory=names.WAITS
        )
        self.waiting = meter.create_up_down_counter(*names.WAITING)

    def watch(self, shard: Shard, queue: str) -> Callable[[], None]:
        """Report everything that a shard does; returns a function that counts a refusal by the server.

        `queue`: the name of its queue, without a key.
        """
        observe(shard, _Jobs(self, shard, queue), takes_ready=False)
        return quietly(lambda: self.refused.add(1, {names.QUEUE: queue}))

    def counts(self, what: str) -> Counter[str]:
        """A counter of outcomes of tasks that also adds to the metric. `what`: their queues."""
        return Reporting(
            lambda outcome, more: self.tasks.add(more, {names.QUEUE: what, names.OUTCOME: outcome})
        )

    @quietly
    def inserted(self, tasks: Iterable[tuple[str, str]]) -> None:
        """Note that tasks were inserted here, by queue and id: the trace links to those of the tasks."""
        for queue, id_ in tasks:
            self.tracer.start_span(
                names.INSERT_SPAN,
                kind=self.trace.SpanKind.PRODUCER,
                attributes={names.QUEUE: queue, names.TASK: id_},
                links=[self.trace.Link(self._root(id_))],
            ).end()

    def traced(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """See `traced`."""

        def span(given: Any) -> Any:  # noqa: ANN401 - a context manager
            claims = given if isinstance(given, list) else [given]
            first = claims[0]
            attributes = {
                names.QUEUE: first.queue, names.TASK: first.id, names.ATTEMPT: first.attempt,
            }  # fmt: skip
            return self.tracer.start_as_current_span(
                names.TASK_SPAN,
                context=self._context(first.id),
                kind=self.trace.SpanKind.CONSUMER,
                attributes=attributes,
                links=[self.trace.Link(self._root(claim.id)) for claim in claims[1:]],
            )

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def in_span(given: Any) -> Any:  # noqa: ANN401 - as the function has it
                with span(given):
                    return await function(given)

            return in_span

        @wraps(function)
        def plainly_in_span(given: Any) -> Any:  # noqa: ANN401 - as above
            with span(given):
                return function(given)

        return plainly_in_span

    def _root(self, task: str) -> SpanContext:
        """The parent of all spans of a task, in a trace that is derived from the task's id.

        So nothing about the trace is stored with the task: the id is enough to find it.
        """
        try:
            number = UUID(task).int
        except ValueError:
            number = int.from_bytes(sha256(task.encode()).digest()[:16], "big")
        flags = self.trace.TraceFlags(self.trace.TraceFlags.SAMPLED)
        return self.trace.SpanContext(number or 1, number & _SPAN_ID or 1, is_remote=True, trace_flags=flags)

    def _context(self, task: str) -> Context:
        return self.trace.set_span_in_context(self.trace.NonRecordingSpan(self._root(task)))


class _Jobs:
    """The jobs of one shard. Its metrics have the queue's name, and not the key: there may be many keys."""

    def __init__(self, telemetry: Telemetry, shard: Shard, queue: str) -> None:
        self._telemetry, self._shard = telemetry, shard
        self._attributes = {names.QUEUE: queue}
        self._name = shown(shard.queue)
        self._spans: dict[int, Span] = {}
        self._undone = 0  # jobs that were counted, but did not begin
        shard.dispatcher.skipped = Reporting(
            lambda cause, more: telemetry.unused.add(more, {**self._attributes, names.CAUSE: cause})
        )
        ended, end = shard.ended, quietly(self._end)

        def ended_told(grant: Grant, error: Exception | None = None) -> None:
            end(grant.ticket, error)
            ended(grant, error)

        shard.ended = ended_told  # type: ignore[method-assign] # for this shard alone

    def began(self, grant: Grant, started: float, waited: float) -> None:
        """See `Observer.began`."""
        telemetry = self._telemetry
        if self._undone:
            self._undone -= 1
        else:
            telemetry.starts.add(1, self._attributes)
            telemetry.wait.record(waited, self._attributes)
            telemetry.lateness.record(max(0.0, started - grant.due), self._attributes)
        now = time.time_ns()
        attributes: dict[str, str | int] = {names.QUEUE: self._name, names.TICKET: grant.ticket}
        span = telemetry.tracer.start_span(
            names.JOB_SPAN, attributes=attributes, start_time=now - int(waited * 1e9)
        )
        if span.is_recording():
            span.add_event(names.BEGAN, timestamp=now)
            self._spans[grant.ticket] = span

    def undone(self, grant: Grant) -> None:
        """See `Observer.undone`: a counter can't go back, so the next start isn't counted in its place.

        The span is dropped without an end, because there was no such job.
        """
        self._undone += 1
        self._spans.pop(grant.ticket, None)

    def _end(self, ticket: int, error: Exception | None) -> None:
        """End the span of a job, with the error by which it failed."""
        if (span := self._spans.pop(ticket, None)) is not None:
            if error is not None:
                span.record_exception(error)
                span.set_status(self._telemetry.trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
            span.end()


class Reporting(Counter[str]):
    """A counter that also reports each increase of a count."""

    def __init__(self, tell: Callable[[str, int], object]) -> None:
        super().__init__()
        self._tell = quietly(tell)

    def __setitem__(self, name: str, count: int) -> None:
        if (more := count - self.get(name, 0)) > 0:
            self._tell(name, more)
        super().__setitem__(name, count)

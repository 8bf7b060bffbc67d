"""The methods of the protocol: their messages, their verbs, and where HTTP has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from intervalq.service._access import Caller
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.verbs import Verbs

NAME: Final = "api.EntroQ"
"""The name of the gRPC service."""


class Method(NamedTuple):
    """A method with one answer."""

    name: str
    request: type[Message]
    response: type[Message]
    verb: Callable[[Verbs, Any, Caller], Awaitable[Message]]
    http: tuple[str, str]
    """The method and path of the same over HTTP/JSON."""
    waits: bool = False
    """Whether it answers only when there is a task."""


UNARY: Final = (
    Method("TryClaim", pb.ClaimRequest, pb.ClaimResponse, Verbs.try_claim, ("POST", "/api/v0/claim")),
    Method(
        "Claim", pb.ClaimRequest, pb.ClaimResponse, Verbs.claim, ("POST", "/api/v0/claim/wait"), waits=True
    ),
    Method("Modify", pb.ModifyRequest, pb.ModifyResponse, Verbs.modify, ("POST", "/api/v0/modify")),
    Method("Tasks", pb.TasksRequest, pb.TasksResponse, Verbs.tasks, ("GET", "/api/v0/tasks")),
    Method("Queues", pb.QueuesRequest, pb.QueuesResponse, Verbs.queues, ("GET", "/api/v0/queues")),
    Method(
        "QueueStats", pb.QueuesRequest, pb.QueuesResponse, Verbs.queue_stats, ("GET", "/api/v0/queues/stats")
    ),
    Method("Time", pb.TimeRequest, pb.TimeResponse, Verbs.time, ("GET", "/api/v0/time")),
    Method("Docs", pb.DocsRequest, pb.DocsResponse, Verbs.docs, ("GET", "/api/v0/docs")),
    Method(
        "ClaimDocs",
        pb.ClaimDocsRequest,
        pb.ClaimDocsResponse,
        Verbs.claim_docs,
        ("POST", "/api/v0/docs/claim"),
    ),
    Method(
        "NamespaceStats",
        pb.NamespacesRequest,
        pb.NamespacesResponse,
        Verbs.namespace_stats,
        ("GET", "/api/v0/namespaces/stats"),
    ),
)

STREAM_TASKS: Final[Callable[[Verbs, Any, Caller], AsyncIterator[Message]]] = Verbs.stream_tasks
"""The one method whose answer is a stream: `StreamTasks`."""
STREAM_PATH: Final = "/api/v0/tasks/stream"
"""Where HTTP has it, by GET."""

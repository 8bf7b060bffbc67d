"""The protocols in which a service answers, over the stores that it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from intervalq._watch.reader import Reader
from intervalq._wire.schema import Schemas
from intervalq.service._access import Access
from intervalq.service._entroq import over_grpc as entroq_grpc
from intervalq.service._entroq import over_http as entroq_http
from intervalq.service._entroq.openapi import paths_of as entroq_paths_of
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._openapi import document
from intervalq.service._pacing import over_http as pacing_http
from intervalq.service._pacing.openapi import paths_of
from intervalq.service._pacing.queues import Queues
from intervalq.service._pacing.verbs import Pacing
from intervalq.service._page import page, schedules, tasks
from intervalq.service._remote import over_http as remote_http
from intervalq.service._remote.over_grpc import Remote
from intervalq.service._remote.stores import Stores
from intervalq.tasks import Tasks


class Parts:
    """EntroQ's verbs, intervalq.v1, and pacing over HTTP."""

    def __init__(self, stores: Stores, access: Access | None, logs: Sequence[Path]) -> None:
        self._stores, self._access = stores, access
        self._reader = Reader(stores.queues, Tasks(stores.tasks), logs)
        self._remote = Remote(stores, access)
        self._queues = None if stores.queues is None else Queues(stores.queues)
        self.verbs = Verbs(stores.tasks, stores.answers)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The handlers of all gRPC services."""
        return entroq_grpc.handler(self.verbs, self._access), self._remote.handler()

    def routes(self) -> list[Route]:
        """The routes of all HTTP services."""
        schemas = Schemas()
        paths = remote_http.paths_of(schemas) | entroq_paths_of(schemas.parts)
        found = remote_http.routes(self._stores, self._access)
        if self._queues is not None:
            paths |= paths_of(pacing_http.VERBS)
            found += pacing_http.routes(Pacing(self._queues, self._stores.actions), self._access)
        described = document(paths | schedules.paths() | tasks.paths(), schemas.parts)

        async def openapi(request: Request) -> Response:
            del request
            return JSONResponse(described)

        found.append(Route("/v1/openapi.json", openapi, methods=["GET"]))
        found += page.routes(self._reader, self._access, self._stores.actions, self._stores.answers)
        found += schedules.routes(self._reader, self._access, self._stores.actions)
        found += tasks.routes(self._stores, self._access)
        return [*entroq_http.routes(self.verbs, self._access), *found]

    def close(self) -> None:
        """End every wait: the service is about to stop."""
        self.verbs.waiting.close()
        self._remote.close()
        if self._queues is not None:
            self._queues.close()

    async def aclose(self) -> None:
        """Give back what no client got, and close the stores that the service opened."""
        if self._queues is not None:
            await self._queues.aclose()
        self._reader.logs.close()
        await self.verbs.aclose()
        await self._stores.aclose()

"""The page of a service: queues, tasks, schedules and workers in a browser. One reading serves all."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from intervalq import QueueState
from intervalq._page.html import document
from intervalq._watch.rates import Rates
from intervalq._watch.reader import Reader
from intervalq._watch.rows import (
    QUEUES,
    SCHEDULES,
    TASKS,
    WORKERS,
    Row,
    queue_rows,
    schedule_rows,
    task_rows,
    worker_rows,
)
from intervalq.errors import IntervalqError
from intervalq.schedules import ScheduleInfo
from intervalq.service._access import Access, Caller, Wanted
from intervalq.service._http import caller_of, problem
from intervalq.service._refusal import Code, Refusal, refusal
from intervalq.service._remote.rights import SESSIONS, queue_of, schedule

_REST: Final = 1.0
"""Seconds for which a reading is shown to all viewers."""

_PATIENCE: Final = 5.0
"""Seconds after which a store that doesn't answer counts as unreachable."""

_CHANGES: Final = {"queues": "administer", "schedules": "change"}
"""Which action a change of a row is, by view."""

_HERE: Final = Path(__file__).parent


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def page() -> tuple[str, dict[str, str]]:
    """The page, which is the same for everybody, and its headers: no other script may run in it."""
    style, script = f"<style>{_read('page.css')}</style>", f"<script>{_read('page.js')}</script>"
    made = document("intervalq", [_read("page.html"), style, script])

    def hashes(tag: str) -> str:
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", made, re.DOTALL)
        return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)

    policy = (
        f"default-src 'none'; style-src {hashes('style')}; script-src {hashes('script')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return made, {**_HEADERS, "content-security-policy": policy}


_HEADERS: Final = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Part(NamedTuple):
    """A view of the page, and how it is read."""

    columns: tuple[str, ...]
    read: Callable[[], Awaitable[list[Row]]]
    turn: anyio.Lock
    """Held by the request that reads; the others wait for its result."""


class Watch:
    """What a store has now. Each part is read at most once a second, however many viewers there are."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rates = Rates()
        self._parts = {
            "queues": Part(QUEUES, self._queues, anyio.Lock()),
            "tasks": Part(TASKS, self._counts, anyio.Lock()),
            "schedules": Part(SCHEDULES, self._schedules, anyio.Lock()),
            "workers": Part(WORKERS, self._workers, anyio.Lock()),
        }
        self._found: dict[str, tuple[float, list[Row] | Refusal]] = {}

    async def overview(self, caller: Caller, *, may_change: bool) -> dict[str, Any]:
        """What a caller may see: for each view its columns and rows, or why it can't be read.

        Args:
            caller: who asks.
            may_change: whether a browser may change anything at this service.

        Raises:
            Refusal: what the caller may see can't be found out.
        """
        names = {*self._parts}
        if await caller.denied([SESSIONS], ""):
            names.discard("workers")
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(self._look, name)
        return {
            name: {"trouble": found.message}
            if isinstance(found := self._found[name][1], Refusal)
            else {"columns": part.columns, "rows": await _seen(caller, name, found, may_change=may_change)}
            for name, part in self._parts.items()
            if name in names
        }

    async def _look(self, name: str) -> None:
        part = self._parts[name]
        async with part.turn:
            if name in self._found and time.monotonic() - self._found[name][0] < _REST:
                return
            found: list[Row] | Refusal
            try:
                with anyio.fail_after(_PATIENCE):
                    found = await part.read()
            except IntervalqError as error:
                found = refusal(error)
            except TimeoutError:
                found = Refusal(Code.UNAVAILABLE, f"the store has given no answer for {_PATIENCE:g} s")
            self._found[name] = time.monotonic(), found

    async def _queues(self) -> list[Row]:
        looked = await self._reader.look()
        self._rates.take(looked.states)
        return queue_rows(looked, self._rates, self._reader.logs)

    async def _counts(self) -> list[Row]:
        return task_rows(await self._reader.counts())

    async def _schedules(self) -> list[Row]:
        return schedule_rows(await self._reader.schedules())

    async def _workers(self) -> list[Row]:
        return worker_rows(await self._reader.workers(), time.time())


async def _seen(caller: Caller, name: str, rows: list[Row], *, may_change: bool) -> list[dict[str, Any]]:
    """The rows of a view that a caller may see."""
    names = [_name(name, row) for row in rows]
    hidden = set[Wanted]() if name == "workers" else await caller.denied({("read", of) for of in names}, "")
    action = _CHANGES.get(name) if may_change else None
    changes = set[Wanted]() if action is None else {(action, of) for of in names}
    changes -= await caller.denied(changes, "")
    return [
        {
            "key": row.key,
            "cells": row.cells,
            "facts": row.facts,
            "points": [] if ":" in row.key else row.points,
            "gaps": row.gaps and row.gaps._asdict(),
            "held": row.subject is not None and _is_held(row.subject),
            "queue": row.subject.queue if isinstance(row.subject, ScheduleInfo) else None,
            "may_change": row.subject is not None and (action, of) in changes,
        }
        for of, row in zip(names, rows, strict=True)
        if ("read", of) not in hidden
    ]


def _is_held(subject: QueueState | ScheduleInfo) -> bool:
    return subject.is_held if isinstance(subject, QueueState) else subject.paused


def _name(view: str, row: Row) -> str:
    """The name of what a row shows, as access rules name it."""
    if isinstance(row.subject, ScheduleInfo):
        return schedule(row.subject.name)
    return queue_of(row.key) if view == "queues" else row.key


def routes(reader: Reader, access: Access | None) -> list[Route]:
    """The page, and what it shows.

    Without access control it offers no changes: those that a browser sends are refused (see `NoPages`).
    """
    watch, (made, headers) = Watch(reader), page()

    async def root(request: Request) -> Response:
        del request
        return HTMLResponse(made, headers=headers)

    async def overview(request: Request) -> Response:
        try:
            found = await watch.overview(caller_of(access, request), may_change=access is not None)
        except Refusal as refused:
            return problem(refused.code.http, "the overview is refused", refused.message, _HEADERS)
        return JSONResponse(found, headers=_HEADERS)

    return [
        Route("/", root, methods=["GET"]),
        Route("/v1/overview", overview, methods=["GET"]),
    ]

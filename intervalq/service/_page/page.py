"""The page of a service: queues, tasks, schedules and workers in a browser. One reading serves all."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from intervalq import QueueState
from intervalq._page.html import document
from intervalq._show import escaped, seconds
from intervalq._watch.rates import Rates
from intervalq._watch.reader import MAX_TASKS, Reader
from intervalq._watch.rows import (
    ACTIONS,
    QUEUES,
    SCHEDULES,
    TASKS,
    TASKS_OF,
    WORKERS,
    Row,
    action_rows,
    queue_rows,
    rows_of_tasks,
    schedule_rows,
    task_rows,
    worker_rows,
)
from intervalq._watch.task import value_lines
from intervalq.errors import IntervalqError
from intervalq.schedules import ScheduleInfo
from intervalq.service._access import Access, Caller, Wanted, need
from intervalq.service._actions import Actions
from intervalq.service._http import caller_of, problem, refused
from intervalq.service._large import LARGE, Answers, away, counted
from intervalq.service._refusal import Code, Refusal, refusal
from intervalq.service._remote.rights import SESSIONS, queue_of, schedule
from intervalq.tasks._claim.values import queue_name
from intervalq.tasks._spec.outcome import is_dead, living_queue

_REST: Final = 1.0
"""Seconds for which a reading is shown to all viewers."""

_PATIENCE: Final = 5.0
"""Seconds after which a store that doesn't answer counts as unreachable."""

_CHANGES: Final = {"queues": "administer", "schedules": "change"}
"""Which action a change of a row is, by view."""

_MAX_OPEN: Final = 100
"""The maximum number of queues whose tasks are kept for further viewers."""

_HERE: Final = Path(__file__).parent


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def page() -> tuple[str, dict[str, str]]:
    """The page, which is the same for everybody, and its headers: no other script may run in it."""
    style = f"<style>{_read('page.css')}</style>"
    script = f"<script>{_read('page.js')}{_read('tasks.js')}</script>"
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


class Reading:
    """A part of a store, which is read at most once a second, however many viewers there are."""

    def __init__(self, read: Callable[[], Awaitable[list[Row]]]) -> None:
        self._read = read
        self._turn = anyio.Lock()  # held by the request that reads; the others wait for its result
        self._last: tuple[float, list[Row] | Refusal] | None = None

    async def look(self) -> list[Row] | Refusal:
        """The rows, or why they can't be read."""
        async with self._turn:
            if self._last is not None and time.monotonic() - self._last[0] < _REST:
                return self._last[1]
            found: list[Row] | Refusal
            try:
                with anyio.fail_after(_PATIENCE):
                    found = await self._read()
            except IntervalqError as error:
                found = refusal(error)
            except TimeoutError:
                found = Refusal(Code.UNAVAILABLE, f"the store has given no answer for {_PATIENCE:g} s")
            self._last = time.monotonic(), found
            return found


class Part(NamedTuple):
    """A view of the page."""

    columns: tuple[str, ...]
    reading: Reading


class Watch:
    """What a store has now, and what callers have changed at this service."""

    def __init__(self, reader: Reader, actions: Actions) -> None:
        self._reader, self._actions = reader, actions
        self._rates = Rates()
        self._parts = {
            "queues": Part(QUEUES, Reading(self._queues)),
            "tasks": Part(TASKS, Reading(self._counts)),
            "schedules": Part(SCHEDULES, Reading(self._schedules)),
            "workers": Part(WORKERS, Reading(self._workers)),
        }
        self._open: OrderedDict[str, Reading] = OrderedDict()

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
        found: dict[str, list[Row] | Refusal] = {}

        async def look(name: str) -> None:
            found[name] = await self._parts[name].reading.look()

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(look, name)
        shown: dict[str, Any] = {
            name: {"trouble": rows.message}
            if isinstance(rows := found[name], Refusal)
            else {
                "columns": part.columns,
                "rows": await _seen(caller, name, rows, self._actions, may_change=may_change),
            }
            for name, part in self._parts.items()
            if name in names
        }
        return shown | {"actions": await self._acted(caller)}

    async def tasks(self, queue: str, caller: Caller, *, may_change: bool) -> dict[str, Any]:
        """The first tasks of a queue, and what the caller may do with them.

        Raises:
            Refusal: it may not read them, or they can't be read.
            InvalidName: there can be no such queue.
        """
        await need(caller, [("read", queue_name(queue))])
        if queue not in self._open:
            self._open[queue] = Reading(lambda: self._tasks_of(queue))
        self._open.move_to_end(queue)
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        rows = await self._open[queue].look()
        if isinstance(rows, Refusal):
            raise rows
        delete, back = ("delete", queue), ("insert", living_queue(queue))
        denied = await caller.denied({delete, back}, "")
        may = [] if not may_change or delete in denied else ["cancel", "move", "delete"]
        may = ["retry", *may] if may and is_dead(queue) and back not in denied else may
        shown = [{"key": row.key, "cells": row.cells, "facts": row.facts} for row in rows]
        return {"columns": TASKS_OF, "rows": shown, "may": may, "is_all": len(rows) < MAX_TASKS}

    async def value(self, id_: str, caller: Caller) -> str | None:
        """The value of a task, as JSON; None: it is gone, or the caller may not read it."""
        task = await self._reader.task(id_)
        if task is None or await caller.denied({("read", task.queue)}, ""):
            return None
        return "\n".join(line for _, line in value_lines(task))

    async def _acted(self, caller: Caller) -> dict[str, Any]:
        """The last actions of which the caller may know."""
        noted = self._actions.last()
        hidden = await caller.denied({each.seen for each in noted}, "")
        rows = action_rows([each.action for each in noted if each.seen not in hidden], time.time())
        return {"columns": ACTIONS, "rows": [{"cells": row.cells} for row in rows]}

    async def _tasks_of(self, queue: str) -> list[Row]:
        return rows_of_tasks(await self._reader.tasks_of(queue), {}, time.time())

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


async def _seen(
    caller: Caller, name: str, rows: list[Row], actions: Actions, *, may_change: bool
) -> list[dict[str, Any]]:
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
            "facts": [*row.facts, *_held_by(row, actions)],
            "points": [] if ":" in row.key else row.points,
            "gaps": row.gaps and row.gaps._asdict(),
            "held": row.subject is not None and _is_held(row.subject),
            "queue": row.subject.queue if isinstance(row.subject, ScheduleInfo) else None,
            "may_change": row.subject is not None and (action, of) in changes,
        }
        for of, row in zip(names, rows, strict=True)
        if ("read", of) not in hidden
    ]


def _held_by(row: Row, actions: Actions) -> list[tuple[str, str]]:
    """Who holds a queue, if that was done at this service."""
    if not isinstance(row.subject, QueueState) or not row.subject.is_held:
        return []
    action = actions.hold(row.key)
    ago = "" if action is None else seconds(max(0.0, time.time() - action.at))
    return [] if action is None else [("held by", f"{escaped(action.who)}, {ago} ago")]


def _is_held(subject: QueueState | ScheduleInfo) -> bool:
    return subject.is_held if isinstance(subject, QueueState) else subject.paused


def _name(view: str, row: Row) -> str:
    """The name of what a row shows, as access rules name it."""
    if isinstance(row.subject, ScheduleInfo):
        return schedule(row.subject.name)
    return queue_of(row.key) if view == "queues" else row.key


def routes(reader: Reader, access: Access | None, actions: Actions, answers: Answers) -> list[Route]:
    """The page, and what it shows.

    Without access control it offers no changes: those that a browser sends are refused (see `NoPages`).
    """
    watch, (made, headers) = Watch(reader, actions), page()

    async def root(request: Request) -> Response:
        del request
        return HTMLResponse(made, headers=headers)

    async def overview(request: Request) -> Response:
        try:
            found = await watch.overview(caller_of(access, request), may_change=access is not None)
        except Refusal as why:
            return problem(why.code.http, "the overview is refused", why.message, _HEADERS)
        return JSONResponse(found, headers=_HEADERS)

    async def tasks(request: Request) -> Response:
        given = request.query_params
        found: dict[str, Any]
        try:
            caller = caller_of(access, request)
            if "id" in given:
                found = {"value": await watch.value(given["id"], caller)}
            else:
                found = await watch.tasks(given.get("queue", ""), caller, may_change=access is not None)
        except (Refusal, IntervalqError) as error:
            return refused(error)
        is_large = len(found.get("value") or "") > LARGE
        return counted(answers, await away(is_large, partial(JSONResponse, headers=_HEADERS), found))

    return [
        Route("/", root, methods=["GET"]),
        Route("/v1/overview", overview, methods=["GET"]),
        Route("/v1/overview/tasks", tasks, methods=["GET"]),
    ]

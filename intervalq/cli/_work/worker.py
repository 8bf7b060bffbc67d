"""One process of `intervalq work`: finds the handle of tasks, runs its workers, and ends on signals."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

import anyio

from intervalq._show import escaped, seconds, warn
from intervalq.cli._app import Failed
from intervalq.errors import InvalidOption, short
from intervalq.tasks import Tasks

AT_ONCE: Final = 5.0
"""Seconds that the end may take after the second signal; then the process is ended forcibly."""

SLACK: Final = 20.0
"""Seconds that the end may take after the grace period; then the process is ended forcibly."""

_FAREWELL: Final = 5.0
"""Seconds that closing the store may take."""

_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a process has to do; see the options of `work`."""

    target: str
    concurrency: int
    until_empty: bool
    grace: float
    alone: bool
    """Whether this is the only process."""


# --- the handle ---------------------------------------------------------------------------------------


def load(target: str) -> Tasks:
    """The handle that `MODULE:NAME` names; modules of the working directory are found, too.

    Raises:
        InvalidOption: there is no such handle.
        Failed: the module can't be imported.
    """
    module_name, _, name = target.partition(":")
    name = name or "tasks"
    for what in (module_name, name):
        if not _NAME.fullmatch(what):
            raise InvalidOption(
                f"{short(target)} is not MODULE:NAME: give for example app:tasks for `tasks` in app.py"
            )
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - a path as text, as in sys.path
        sys.path.insert(0, here)
    found: object = _module(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [key for key, value in vars(_module(module_name)).items() if isinstance(value, Tasks)]
            others = f"; it has {', '.join(names)}" if names else ""
            raise InvalidOption(f"module {module_name} has no {name}{others}") from None
    if not isinstance(found, Tasks):
        raise InvalidOption(f"{module_name}:{name} is not a Tasks object but {short(found)}")
    if not found._jobs:
        raise InvalidOption(
            f"{module_name}:{name} has no workers: decorate functions with @{name}.worker(...), in a module "
            f"that {module_name} imports"
        )
    return found


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            meant = name.removesuffix(".py")
            hint = "" if meant == name else f"; the module of the file {name} is {meant}"
            raise InvalidOption(
                f"there is no module {error.name}, neither in {os.getcwd()} nor installed{hint}"  # noqa: PTH109
            ) from None
        raise _broken(name, error) from None
    except Exception as error:  # noqa: BLE001 - whatever its top level raises
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> Failed:
    """The error of a user's module, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    reason = traceback.format_exception_only(error)[-1].strip()
    return Failed(f"module {name} can't be imported: {reason}{where}")


# --- signals ------------------------------------------------------------------------------------------


def heard() -> list[signal.Signals]:
    """The signals that end workers; one that is ignored from the beginning (by `nohup`) stays ignored."""
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in every if signal.getsignal(number) is not signal.SIG_IGN]


class Ends:
    """Handles signals: the first one stops the workers, the second one ends them at once.

    It uses Python's signal handlers, not those of the event loop: workers that block the loop must not keep
    the process from ending.
    """

    def __init__(self, handle: Tasks, scope: anyio.CancelScope, plan: Plan) -> None:
        self.by: int | None = None
        """The signal that ended it at once."""
        self.running = False
        self.stopping = False
        self._handle, self._scope, self._plan = handle, scope, plan
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Handle signals while this context is open."""
        before = {number: signal.signal(number, self._came) for number in heard()}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def stop(self) -> None:
        """Start no more tasks, and let running ones end."""
        self.stopping = True
        if self._plan.alone:
            say_stopping(self._plan)
        if self.running:
            self._handle.stop()
        else:
            self._scope.cancel()

    def _came(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.stopping:
            self.stopping = True
            _exit_after(self._plan.grace + SLACK, number)
            self._loop.call_soon_threadsafe(self.stop)
        elif self.by is None:
            self.by = number
            _exit_after(AT_ONCE, number)
            self._loop.call_soon_threadsafe(self._scope.cancel)

    def end(self) -> None:
        """End the workers at once, as a second signal does."""
        self.stopping = True
        self._came(signal.SIGTERM, None)


def _exit_after(pause: float, number: int) -> None:
    """End the process even if the event loop is blocked, or the end takes too long."""
    timer = threading.Timer(pause, os._exit, [128 + number])
    timer.daemon = True
    timer.start()


# --- the run ------------------------------------------------------------------------------------------


async def run(
    handle: Tasks,
    plan: Plan,
    ready: Callable[[], None] = lambda: None,
    background: Callable[[Ends], Coroutine[Any, Any, None]] | None = None,
) -> int:
    """Run the workers to their end, and return the exit code.

    Args:
        handle: the handle that has the workers.
        plan: how to run them.
        ready: called once the store has answered.
        background: runs at the same time, and may stop the workers.

    Raises:
        InvalidOption: there are other processes, and the store is one that they don't share.
        StoreError: the store can't be reached at the beginning, or can't be worked with.
    """
    if not plan.alone and handle._here().url.startswith("memory:"):
        raise InvalidOption("tasks in memory can't be shared by several processes: use a file or a server")
    async with anyio.create_task_group() as group:
        ends = Ends(handle, group.cancel_scope, plan)
        with ends.heeded():
            try:
                if background is not None:
                    group.start_soon(background, ends)
                await handle.sessions()
                ready()
                if not ends.stopping:
                    ends.running = True
                    await handle.run(
                        concurrency=plan.concurrency, until_empty=plan.until_empty, grace=plan.grace
                    )
            finally:
                with anyio.move_on_after(_FAREWELL, shield=True):
                    await handle.aclose()
        group.cancel_scope.cancel()
    return 0 if ends.by is None else 128 + ends.by


def end(code: int) -> NoReturn:
    """End the process, even if abandoned functions still run in threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


def say_stopping(plan: Plan) -> None:
    """Say what the first signal does."""
    warn(f"stopping: running tasks may continue for {seconds(plan.grace)}; a second signal ends them at once")


def summary(counts: Counter[str]) -> str:
    """The outcomes of the tasks, in one line."""
    parts = [f"{counts[what]} {what}" for what in ("done", "failed", "dead", "given back")]
    parts += [f"{counts[what]} {what}" for what in ("snoozed", "cancelled", "lost") if counts[what]]
    return ", ".join(parts)


# --- logging ------------------------------------------------------------------------------------------


class _Lines(logging.Formatter):
    """Log lines whose control characters are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = "\n".join(map(escaped, record.message.split("\n")))
        return super().formatMessage(record)


def log_to_stderr(*, process: bool) -> None:
    """Log to standard error, unless the user's module has configured logging."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    who = "[%(process)d] " if process else ""
    handler.setFormatter(_Lines(f"%(asctime)s %(levelname)s {who}%(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)

"""Calls in forked processes, several at a time; a process that dies is told from one that answers."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any, Final, TypeAlias, TypeVar

Key = TypeVar("Key")
Tell: TypeAlias = Callable[[Any], None]

MEMORY: Final = 2 << 30
"""The memory limit of a process, in bytes."""


def forked(
    calls: Iterable[tuple[Key, Callable[[Tell], None]]], processes: int
) -> Iterator[tuple[Key, list[Any], int]]:
    """Make each call in a forked process; yield what each reported, as they end.

    Each report comes with the exit code, which is negative if the process was killed, for example by `limit`.
    """
    context, left = get_context("fork"), iter(calls)
    running: dict[Any, tuple[Key, Any, list[Any]]] = {}
    while True:
        while len(running) < processes and (call := next(left, None)) is not None:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_call, args=(call[1], there))
            process.start()
            there.close()  # so that reading ends when the process ends
            running[here] = call[0], process, []
        if not running:
            return
        ready: list[Any] = wait(list(running))
        for pipe in ready:
            key, process, told = running[pipe]
            try:
                told.append(pipe.recv())
            except EOFError:
                del running[pipe]
                process.join()
                yield key, told, process.exitcode or 0


def _call(call: Callable[[Tell], None], pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    call(pipe.send)


def limit(seconds: int) -> None:
    """Kill this process once it has used this many more seconds of processor time."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(spent.ru_utime + spent.ru_stime) + seconds, resource.RLIM_INFINITY)
    )

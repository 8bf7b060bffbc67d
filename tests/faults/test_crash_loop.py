"""Workers that die repeatedly, on every store: only a task that kills them is charged for that."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import servers
from faults import crash_loop
from faults.crash_loop import STORES, Loop
from faults.crash_process import POISON
from faults.needs import need_server

Loops = dict[tuple[bool, bool], Loop]
"""By whether the tasks are plain, and whether one is poison."""

KINDS = [*((store, False) for store in STORES), ("postgres", True), ("pgbouncer", True)]


def _loops(store: str) -> Loops:
    with STORES[store]() as url:
        return {
            (plain, poison): crash_loop.run(
                url,
                tasks=300,
                each=0 if poison else 90,
                plain=plain,
                poison=poison,
                expiry=1.0,
                most=2 if poison else None,
            )
            for name, plain in KINDS
            if name == store
            for poison in (False, True)
        }


@pytest.fixture(scope="module")
def loops() -> Iterator[dict[str, Future[Loops]]]:
    """The loops of each store; several stores run at once, because most of it is waiting."""
    with ThreadPoolExecutor(3) as pool:
        yield {store: pool.submit(_loops, store) for store in STORES}


def _seen(loops: dict[str, Future[Loops]], store: str, *, plain: bool, poison: bool) -> Loop:
    try:
        return loops[store].result()[plain, poison]
    except servers.NotInstalledError as error:
        need_server(error)


@pytest.mark.parametrize(("store", "plain"), KINDS)
def test_workers_that_die_after_some_tasks_get_all_of_them_done(
    loops: dict[str, Future[Loops]], store: str, *, plain: bool
) -> None:
    seen = _seen(loops, store, plain=plain, poison=False)
    assert seen.faults(poison=False) == []
    assert 3 <= seen.kills <= 5


@pytest.mark.parametrize(("store", "plain"), KINDS)
def test_a_task_that_kills_its_workers_is_dead_alone(
    loops: dict[str, Future[Loops]], store: str, *, plain: bool
) -> None:
    seen = _seen(loops, store, plain=plain, poison=True)
    assert seen.faults(poison=True) == []
    assert 2 <= seen.begun[POISON] <= 3, "the first time may cost nothing"

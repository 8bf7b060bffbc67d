"""The queues that a service paces for its clients: a handle for each, while somebody uses it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import anyio

from intervalq import IntervalQueue
from intervalq.errors import QueueNotFound
from intervalq.service._measures import waits
from intervalq.service._refusal import Code, Refusal
from intervalq.store import Store

_MAX_HANDLES: Final = 1_000
_MAX_WAITING: Final = 10_000


class _Shared:
    """A store that stays open when one of its handles is closed."""

    def __init__(self, store: Store) -> None:
        self.url, self.apply, self.names = store.url, store.apply, store.names
        for ability in ("apply_keyed", "wakeups"):
            if hasattr(store, ability):
                setattr(self, ability, getattr(store, ability))

    async def aclose(self) -> None:
        """See `Store.aclose`: the service closes it."""


class Queues:
    """The handles of a service. They take the settings that their queues have."""

    def __init__(self, store: Store) -> None:
        self.store: Store = _Shared(store)
        self._handles: OrderedDict[str, IntervalQueue] = OrderedDict()
        self._uses: dict[str, int] = {}
        self._waiting: set[anyio.CancelScope] = set()
        self._closed = False

    @asynccontextmanager
    async def queue(self, name: str, key: str | None, each: Any) -> AsyncIterator[IntervalQueue]:  # noqa: ANN401 - as JSON has it
        """The handle of a queue, or of a key of it.

        Args:
            name: the queue.
            key: a key; None: the queue itself.
            each: what each key has under one rate, as for `IntervalQueue`; None: keys are on their own.

        Raises:
            InvalidName, InvalidOption: there can be no such queue.
            Refusal: too many queues are in use.
        """
        place = json.dumps([name, each])
        if place not in self._handles:
            await self._make_room()
            made = await self._made(name, each)
            self._handles.setdefault(place, made)
        handle = self._handles[place]
        self._handles.move_to_end(place)
        self._uses[place] = self._uses.get(place, 0) + 1  # from here on it stays
        try:
            await _adopt(handle)
            yield handle if key is None else handle[key]
        finally:
            self._uses[place] -= 1
            if not self._uses[place]:
                del self._uses[place]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait that ends when the service stops.

        Raises:
            Refusal: it stops, or too many clients wait.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise Refusal(Code.UNAVAILABLE, "too many clients wait at this service: ask another one")
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            if self._closed:
                scope.cancel()
            try:
                with waits("slot"):
                    yield
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            raise Refusal(Code.UNAVAILABLE, "the service stops: ask again, perhaps another one")

    def close(self) -> None:
        """End every wait: the service is about to stop."""
        self._closed = True
        for scope in self._waiting:
            scope.cancel()

    async def aclose(self) -> None:
        """Give unused tickets back, and send what was settled."""
        handles, self._handles = self._handles, OrderedDict()
        for handle in handles.values():
            await handle.close(drain=False)

    async def _made(self, name: str, each: Any) -> IntervalQueue:  # noqa: ANN401 - as JSON has it
        if each is None:
            return IntervalQueue(name, store=self.store, on_mismatch="adopt")
        interval = (await IntervalQueue(name, store=self.store).inspect()).interval
        return IntervalQueue(name, interval=interval, each=each, store=self.store, on_mismatch="adopt")

    async def _make_room(self) -> None:
        if len(self._handles) < _MAX_HANDLES:
            return
        idle = next((place for place in self._handles if place not in self._uses), None)
        if idle is None:
            raise Refusal(Code.UNAVAILABLE, "too many queues are in use at this service: ask another one")
        await self._handles.pop(idle).close(drain=False)


async def _adopt(handle: IntervalQueue) -> None:
    """Let a handle without settings take those of its queue, with which its keys are created, too."""
    if handle._options.interval is None:  # noqa: SLF001 - handles of programs are given their settings
        with suppress(QueueNotFound):
            await handle.inspect()
            shard = handle._shard_here
            assert shard is not None
            assert shard.connection.state is not None
            handle._use(shard.connection.state.settings)  # noqa: SLF001 - as `configure` does it

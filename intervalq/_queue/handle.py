"""The lifecycle of a handle: its process and event loop, its store, its shard, and its pickled form."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakValueDictionary

from intervalq._keys.each import OF_ALL, SHARED
from intervalq._keys.names import shown, token
from intervalq._keys.view import CommonView
from intervalq._queue.job import RunningJob
from intervalq._queue.options import Options, whole
from intervalq._queue.threads import WaitingThreads
from intervalq._spec import parse
from intervalq._spec.record import MAX_WEIGHT
from intervalq._timing.backends import current_loop, is_over, running_loop
from intervalq._timing.precision import Precision
from intervalq.errors import ForkedError, InvalidOption, QueueClosed, WrongLoop
from intervalq.store import Store, open_store, shown_url

if TYPE_CHECKING:
    from intervalq._shard.shard import Shard

H = TypeVar("H", bound="Handle")


class Handle:
    """The lifecycle of an `IntervalQueue`: it opens nothing until it is used, and then in that event loop."""

    def __init__(self, mine: Options, given: Store | None) -> None:
        self._options = mine
        self._given_store = given
        self._store: Store | None = given
        self._shard_here: Shard | None = None
        """The shard, if there is one. It may belong to another event loop: see `_shard`."""
        self._view = CommonView()  # of the keys under this queue's rate, in the event loop of its shard
        self._home: tuple[int, object] | None = None  # the process and event loop that the shard lives in
        self._closed = False
        self._parent: Self | None = None
        self._children: WeakValueDictionary[str, Self] = WeakValueDictionary()
        self._configured: dict[str, Handle] = {}
        """Handles of keys that were configured: a later one of the same key needs its settings, too."""
        self._jobs: dict[RunningJob[Any], None] = {}
        """Jobs in the background that have not ended, in the order in which they were added."""
        self._flush_log: Callable[[], object] | None = None
        self._count_refusals: list[Callable[[], object]] = []
        self._callers = WaitingThreads()
        """Threads that wait for slots."""

    @property
    def name(self) -> str:
        """The queue's name; for a keyed queue, `name:key`."""
        return shown(self._options.record)

    def __getitem__(self, key: str) -> Self:
        """A separate queue for a key (a tenant, a host, an e-mail address), with the same settings.

        A key is any text of 1 to 10,000 characters; different texts are different keys. A key leaves nothing
        behind: neither in this process, once its handle is no longer used, nor in the store, which forgets
        its record a minute after it has stopped mattering.

        If the queue has `each`, its keys are under its rate instead of separate: see `key` for weights.
        """
        return self._keyed(token(key))

    def key(self, key: str, *, weight: int = 1) -> Self:
        """The queue of a key, as `queue[key]`, with a weight.

        Args:
            key: see `__getitem__`.
            weight: how many starts the key has in a turn while other keys wait; with `each="shared"` only.
                A key of weight 5 has five times as many in its turn as one of weight 1. The weight belongs to
                this handle: each process sets its own, until `configure(weight=)` sets one for all of them.

        Raises:
            InvalidOption: the weight is not from 1 to 1,000, or the keys of this queue have none.
        """
        if whole("weight", weight, 1, MAX_WEIGHT) != 1 and self._options.each != OF_ALL:
            raise InvalidOption(
                f"weight={weight} needs each={SHARED!r}: the keys of {self.name!r} have a pace of their own"
            )
        return self._keyed(token(key), weight)

    def _keyed(self, key: str, weight: int = 1) -> Self:
        """The queue of a key, which is given in the form that the record's name has."""
        if self._options.key is not None:
            raise TypeError(f"{self!r} is already the queue of a key")
        child = self._children.get(key)
        if child is None or child._options.weight != weight:  # noqa: SLF001 - its own class
            mine = self._settings if child is None else child._options  # noqa: SLF001 - its own class
            child = self._like(replace(mine, key=key, new=False, weight=weight))
            child._parent = self  # noqa: SLF001 - its own class
            self._children[key] = child
            if key in self._configured:
                self._configured[key] = child
        return child

    def _stay(self) -> None:
        """Keep the handle of a key whose settings are no longer those of the other keys."""
        if self._parent is not None and self._options.key is not None:
            self._parent._configured[self._options.key] = self  # noqa: SLF001 - its own class

    async def close(self, *, drain: bool = True) -> None:
        """Accept no more jobs; let waiting ones begin (drain), or fail them with `QueueClosed`.

        This waits for the end of jobs of `add` and `map`; calls of decorated functions, `run` and `slot`
        belong to their callers. Unused tickets are given back, and connections closed. The queue itself, and
        its other handles, go on.
        """
        shard = None if self._closed else self._shard_here
        if shard is not None and self._home is not None and self._home[0] == os.getpid():
            shard = self._shard()
            for child in list(self._children.values()):
                await child.close(drain=drain)
            if drain:
                shard.refuse(drain=True)
                for job in list(self._jobs):
                    await job.ended()
                await self._callers.gone()
            await shard.close(drain=drain)
            if self._flush_log is not None:
                self._flush_log()
            if self._store is not None and self._parent is None:
                await self._store.aclose()
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(drain=kind is None)

    def _shard(self) -> Shard:
        """The shard of this handle in this event loop, created at first use.

        Raises:
            QueueClosed: the handle was closed.
            ForkedError, WrongLoop: it belongs to another process or event loop.
        """
        shard = self._shard_here
        if shard is not None and shard.loop is running_loop() and not shard.closed:
            return shard
        if self._closed or (self._parent is not None and self._parent._closed):  # noqa: SLF001 - its own class
            raise QueueClosed(self.name)
        home = (os.getpid(), current_loop())
        if shard is not None and shard.is_replaced:
            self._shard_here, self._store, self._jobs = None, self._given_store, {}
        if self._shard_here is not None and self._home is not None and self._home != home:
            if self._home[0] != home[0]:
                raise ForkedError(self.name)
            if not is_over(self._home[1]):
                raise WrongLoop(self.name)
            self._shard_here, self._store, self._jobs = None, self._given_store, {}
        if self._shard_here is None:
            from intervalq._shard.shard import Shard  # noqa: PLC0415 - many queues of a program are never used

            mine, self._view = self._options, CommonView()
            precision = None if mine.precision is None else Precision(mine.precision)
            made = Shard(
                mine.record, self._store_here(), mine.settings, lookahead=mine.lookahead, strict=mine.strict,
                precision=precision, on_mismatch=mine.on_mismatch, new=mine.new, start=mine.start,
                counted=mine.counted, beside=self._shard_beside(), hours=mine.hours,
            )  # fmt: skip
            self._observe(made)  # each handle with a log that can't be opened gets the error
            self._shard_here, self._home = made, home
        return self._shard_here

    def _observe(self, shard: Shard) -> None:
        """Let the starts of a shard be logged, and counted by OpenTelemetry, if the program uses it."""
        self._count_refusals = []
        if self._options.log is not None:
            from intervalq._observe.log import log_starts  # noqa: PLC0415 - few handles have a log

            starts = log_starts(shard, self._options.log)
            self._flush_log = starts.flush
            self._count_refusals.append(starts.refused)
        if "opentelemetry" in sys.modules:
            from intervalq._observe.telemetry import telemetry  # noqa: PLC0415 - likewise

            if (found := telemetry()) is not None:
                self._count_refusals.append(found.watch(shard, self._options.name))

    def _store_here(self) -> Store:
        """The store as the shard uses it."""
        mine, store = self._options, self._open()
        if not mine.is_keyed:
            return store
        from intervalq._keys.store import KeyStore  # noqa: PLC0415 - few queues have keys under one rate

        view = CommonView() if self._parent is None else self._parent._view  # noqa: SLF001 - its own class
        return KeyStore(
            store, mine.name, mine.common, own_pace=mine.each != OF_ALL, weight=mine.weight, view=view,
            on_mismatch=mine.on_mismatch,
        )  # fmt: skip

    def _shard_beside(self) -> Shard | None:
        """The shard of the common queue, for those of its keys."""
        return self._parent._shard() if self._parent is not None and self._options.is_keyed else None

    def _open(self) -> Store:
        if self._parent is not None:
            self._parent._shard()  # checks process and event loop
            return self._parent._open()  # noqa: SLF001 - its own class
        if self._store is None:
            self._store = open_store(self._options.store_url)
        return self._store

    def _twin(self) -> Self:
        """An unused handle with the same settings."""
        return self._like(self._settings)

    @property
    def _settings(self) -> Options:
        """The settings for another handle: the queue isn't new any more once this one has created it."""
        shard = self._shard_here
        created = shard is not None and shard.connection.attached
        return replace(self._options, new=False) if created else self._options

    def _like(self, mine: Options) -> Self:
        return revived(type(self), mine, self._given_store)

    @property
    def _has_own_store(self) -> bool:
        """Whether a store object was given, which can't be opened again elsewhere."""
        return self._given_store is not None

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], Options]]:
        if self._given_store is not None:
            raise TypeError(
                f"{self!r} was given a store object, which can't be pickled: give the handle a URL"
            )
        return revived, (type(self), self._settings)

    def __repr__(self) -> str:
        mine = self._options
        parts = [repr(self.name)]
        if mine.auto is not None:
            parts.append("rate='auto'")
        elif mine.interval is not None:
            parts.append(f"interval={parse.text(mine.interval)!r}")
        if self._given_store is not None:
            parts.append(f"store={self._given_store.url!r}")
        elif mine.store_url is not None:
            parts.append(f"store={shown_url(mine.store_url)!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


def revived(kind: type[H], mine: Options, given: Store | None = None) -> H:
    """Create a handle from checked settings."""
    handle = object.__new__(kind)
    Handle.__init__(handle, mine, given)
    return handle

"""The records of schedules as one process knows them, the store's clock, and changes by compare-and-swap."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import anyio

from intervalq._timing.clock import CLOCK
from intervalq.errors import CorruptState, InvalidOption, StoreError, UnsupportedOperation, VersionMismatch
from intervalq.schedules._times.plan import Plan, plan_of
from intervalq.schedules.rules import BadRecord, NewerRecord, Record
from intervalq.store import SchedulesWaking, Scheduling

log: Final = logging.getLogger("intervalq")

Changed = Callable[[], Awaitable[None]]
"""Waits for a change."""

Change = Callable[[Record | None, int], Record | None]
"""Takes the record (None: there is none) and the store's clock; returns the record to keep."""


class Records:
    """What is known of the records in a store."""

    def __init__(self, store: Scheduling, url: str) -> None:
        self._store: Final = store
        self._url = url
        self._texts: dict[str, str | None] = {}
        self._noted: dict[str, int] = {}
        """For each schedule, the number of the answer (of `_answers`) that its text is from."""
        self._answers = 0
        self._now = self._sent = self._received = 0

    def get(self, name: str) -> Record | None:
        """The record of a schedule, as it is known; None: there is none.

        Raises:
            CorruptState: it was not written by intervalq.
            VersionMismatch: it was written by a newer version.
        """
        text = self._texts.get(name)
        if text is None:
            return None
        try:
            return Record.from_text(text)
        except NewerRecord as error:
            raise VersionMismatch(self._url, f"schedule {name!r}: {error}: upgrade intervalq here") from error
        except BadRecord as error:
            raise self._corrupt(name, error) from error

    def plan(self, name: str, record: Record) -> Plan:
        """The plan in a record.

        Raises:
            CorruptState: it can't be read.
            InvalidOption: its time zone is not known on this machine.
            MissingExtra: there is no parser for its cron expression.
        """
        try:
            return plan_of(record.plan)
        except InvalidOption as error:
            raise InvalidOption(f"schedule {name!r}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise self._corrupt(name, f"its plan can't be read: {error}") from error

    def now(self) -> int:
        """The earliest that the store's clock can show by now, unless it was set back."""
        return self._now + CLOCK.get().now() - self._received

    def latest_now(self) -> int:
        """The latest that the store's clock can show by now, unless it was set forward."""
        return self._now + CLOCK.get().now() - self._sent

    def local(self, instant: int) -> int:
        """When, on the process's own clock, the store's clock has certainly reached an instant."""
        return self._received + instant - self._now

    @property
    def names(self) -> list[str]:
        """The schedules whose records are known, sorted."""
        return sorted(name for name, text in self._texts.items() if text is not None)

    async def look(self, names: Collection[str] | None = None) -> set[str]:
        """Read the records of these schedules, or of all (None). Returns the names of those that changed.

        An answer may be old: it was under way while another one came, or is from a replica that lags. If it
        may be older than what is known, the store is asked by a swap that changes nothing.
        """
        began, sent = self._answers, CLOCK.get().now()
        found = await self._store.read_schedules(names)
        self._read(found.now, sent)
        before, doubtful = dict(self._texts), list[str]()
        for name in {*found.texts, *(self._texts if names is None else names)}:
            text, known = found.texts.get(name), self._texts.get(name)
            if text == known:
                continue
            if self._noted.get(name, 0) > began or _is_older(text, known):
                doubtful.append(name)
            else:
                self._note(name, text)
        for name in doubtful:
            known = self._texts.get(name)
            await self._swap(name, known, known)
        return {name for name in {*before, *self._texts} if before.get(name) != self._texts.get(name)}

    async def swap(
        self, name: str, record: Record | None, *, earliest: int = 0, presumed: Record | None = None
    ) -> bool:
        """Replace the known record of a schedule, or the `presumed` one; returns whether that was stored.

        Whatever is stored is known afterwards. Nothing is done before `earliest` on the store's clock.
        """
        known = self._texts.get(name) if presumed is None else presumed.to_text()
        return await self._swap(name, known, None if record is None else record.to_text(), earliest)

    async def change(self, name: str, change: Change) -> Record | None:
        """Apply a change to a schedule's record, again if another process was faster; returns the record.

        Even a change that changes nothing is confirmed by the store, because the known record may be old.
        """
        while True:
            after = change(self.get(name), self.now())
            if await self.swap(name, after):
                return after

    async def drop(self, name: str) -> None:
        """Remove the record of a schedule, whatever it is."""
        while not await self.swap(name, None):
            pass

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Changed]:
        """A context with a function that waits until a record may have changed: for ever without wake-ups.

        It raises a StoreError when the subscription has ended, or could not be made.
        """
        async with AsyncExitStack() as stack:
            changed: Changed = anyio.sleep_forever
            if isinstance(self._store, SchedulesWaking):
                try:
                    changed = await stack.enter_async_context(self._store.schedule_changes())
                except UnsupportedOperation as error:  # a service, if its store has none
                    log.debug("schedules are read at intervals only: %s", error)
                except StoreError as error:
                    changed = partial(_fail, error)
            yield changed

    @property
    def need_looks(self) -> bool:
        """Whether changes can come without a wake-up. In virtual time, clocks are never set."""
        return CLOCK.get().goes_on or not isinstance(self._store, SchedulesWaking)

    async def _swap(self, name: str, known: str | None, text: str | None, earliest: int = 0) -> bool:
        sent = CLOCK.get().now()
        answer = await self._store.swap_schedule(name, known, text, earliest=earliest)
        self._read(answer.now, sent)
        self._note(name, answer.text)
        return answer.done

    def _note(self, name: str, text: str | None) -> None:
        self._answers += 1
        self._texts[name], self._noted[name] = text, self._answers

    def _read(self, now: int, sent: int) -> None:
        """Note a reading of the store's clock, which was asked for at `sent` and has arrived just now."""
        self._now, self._sent, self._received = now, sent, CLOCK.get().now()

    def _corrupt(self, name: str, why: object) -> CorruptState:
        return CorruptState(
            self._url,
            f"the record of schedule {name!r} was not written by intervalq; it is left as it is: {why}. Drop "
            "the schedule to begin anew",
        )


async def _fail(error: StoreError) -> None:
    raise error


def _is_older(text: str | None, known: str | None) -> bool:
    """Whether a record that was read is older than the known one: `through` never goes back."""
    if text is None or known is None:
        return False
    try:
        return Record.from_text(text).through < Record.from_text(known).through
    except (BadRecord, NewerRecord):
        return False

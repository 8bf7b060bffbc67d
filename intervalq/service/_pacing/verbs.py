"""The verbs of pacing: fields in, fields out."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

from intervalq import IntervalQueue, Slot
from intervalq.errors import QueueNotFound, SlotTimeout
from intervalq.rules import FOREVER, Advance, Command, Configure, Hold, Resume
from intervalq.service._access import Caller, need
from intervalq.service._actions import Actions
from intervalq.service._pacing.limits import rate_limits
from intervalq.service._pacing.queues import Queues
from intervalq.service._refusal import Code, Refusal

_MAX_RECEIPTS: Final = 10_000

Fields = Mapping[str, Any]


class Done(NamedTuple):
    """An answer: its fields (None: it has none), and headers."""

    fields: Fields | None
    headers: Mapping[str, str]


class TooLate(Exception):
    """A slot comes too late."""

    def __init__(self, error: SlotTimeout, headers: Mapping[str, str]) -> None:
        super().__init__(str(error))
        self.retry_after, self.headers = error.retry_after, headers


class Pacing:
    """The queues of a store for clients over HTTP."""

    def __init__(self, queues: Queues, actions: Actions) -> None:
        self._queues, self._actions = queues, actions
        self._receipts: OrderedDict[str, tuple[str, Slot]] = OrderedDict()

    async def slot(self, name: str, given: Fields, caller: Caller) -> Done:
        """Answer at the job's slot.

        Raises:
            TooLate: it comes later than `within`; no slot was taken.
            Refusal: the caller may not pace the queue, or the service stops.
        """
        await need(caller, [("pace", name)])
        cost = given.get("cost", 1)
        async with self._queue(name, given) as queue:
            asked = queue.try_slot(
                within=given.get("within", 0), priority=int(given.get("priority", 0)), cost=_whole(cost)
            )
            try:
                with self._queues.waiting():
                    async with asked as slot:
                        found: dict[str, Any] = {"ticket": slot.ticket, "due": slot.due}
            except SlotTimeout as error:
                raise TooLate(error, rate_limits(queue)) from error
            if isinstance(cost, dict):
                found["receipt"] = self._receipt(name, slot)
            return Done(found, rate_limits(queue))

    async def quote(self, name: str, given: Fields, caller: Caller) -> Done:
        """In how many seconds a job added now would begin; null: nobody knows."""
        await need(caller, [("pace", name)])
        async with self._queue(name, given) as queue:
            return Done({"seconds": await queue.quote(_whole(given.get("cost", 1)))}, rate_limits(queue))

    async def settle(self, name: str, given: Fields, caller: Caller) -> Done:
        """Report what a job really took of the limits.

        Raises:
            Refusal: this service knows no such job, or it is settled already.
        """
        await need(caller, [("pace", name)])
        if "receipt" not in given or "units" not in given:
            raise Refusal(Code.INVALID_ARGUMENT, "give the receipt of a slot, and units")
        of, slot = self._receipts.get(given["receipt"], ("", None))
        if of != name or slot is None:
            raise Refusal(
                Code.NOT_FOUND,
                "this service knows no slot with this receipt: settle it at the service that gave it, once; "
                "otherwise its estimate counts",
            )
        slot.settle(**{unit: int(took) for unit, took in given["units"].items()})
        del self._receipts[given["receipt"]]
        return Done(None, {})

    async def hold(self, name: str, given: Fields, caller: Caller) -> Done:
        """Stop the queue for a while; without `seconds`, until somebody resumes it."""
        is_pause = "seconds" not in given
        await need(caller, [("administer" if is_pause else "pace", name)])
        async with self._queue(name, given) as queue:
            await (queue.pause() if is_pause else queue.cool_down(given["seconds"]))
            length = FOREVER if is_pause else round(given["seconds"] * 1e6)
            self._note(caller, queue, Hold(length=length))
        return Done(None, {})

    async def resume(self, name: str, given: Fields, caller: Caller) -> Done:
        """End every pause at once."""
        await need(caller, [("administer", name)])
        async with self._queue(name, given) as queue:
            await queue.resume()
            self._note(caller, queue, Resume())
        return Done(None, {})

    async def configure(self, name: str, given: Fields, caller: Caller) -> Done:
        """Change the queue for everybody, or create it."""
        await need(caller, [("administer", name)])
        settings = {each: given[each] for each in _SETTINGS if each in given}
        for each in ("burst", "max_running", "weight"):
            if each in settings:
                settings[each] = int(settings[each])
        async with self._queue(name, given) as queue:
            try:
                await queue.inspect()
            except QueueNotFound:
                if "weight" in settings:
                    raise
                await self._create(name, given.get("key"), settings)
            else:
                await queue.configure(**settings)
            self._note(caller, queue, Configure())
            return Done((await queue.inspect()).to_dict(), rate_limits(queue))

    async def inspect(self, name: str, given: Fields, caller: Caller) -> Done:
        """The queue's state."""
        await need(caller, [("read", name)])
        async with self._queue(name, given) as queue:
            return Done((await queue.inspect()).to_dict(), rate_limits(queue))

    def _note(self, caller: Caller, queue: IntervalQueue, command: Command) -> None:
        self._actions.note_queue(caller, queue._options.record, command)  # noqa: SLF001 - its name in the store

    def _queue(self, name: str, given: Fields) -> AbstractAsyncContextManager[IntervalQueue]:
        return self._queues.queue(name, given.get("key"), given.get("each"))

    async def _create(self, name: str, key: str | None, settings: Mapping[str, Any]) -> None:
        made = IntervalQueue(name, store=self._queues.store, **settings)
        options = (made if key is None else made[key])._options  # noqa: SLF001 - its name and settings in the store
        if options.settings is None:
            raise Refusal(Code.NOT_FOUND, f"there is no queue {name}: give it a rate, an interval or limits")
        command = Advance(settings=options.settings, attach=True, nonce=secrets.token_hex(8))
        await self._queues.store.apply(options.record, command)

    def _receipt(self, name: str, slot: Slot) -> str:
        receipt = secrets.token_urlsafe(16)
        self._receipts[receipt] = name, slot
        if len(self._receipts) > _MAX_RECEIPTS:
            self._receipts.popitem(last=False)
        return receipt


_SETTINGS: Final = ("interval", "rate", "burst", "max_running", "limits", "weight")


def _whole(cost: Any) -> int | dict[str, int]:  # noqa: ANN401 - as JSON has it
    return {unit: int(much) for unit, much in cost.items()} if isinstance(cost, dict) else int(cost)

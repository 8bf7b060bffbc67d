"""`redis://`, `rediss://`, `unix://`, and `+cluster` of the first two: durable tasks in a Redis or Valkey.

A command is one atomic step of the server, in one script (tasks_*.lua). It may concern several queues, so all
tasks are in five keys with one hash tag. Each lock, and each day of outcomes, has keys with the same tag: in
a cluster, one node has them all. To separate unrelated workloads, use databases of their own (`/1`) or other
servers.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from struct import error as struct_error
from typing import Any, Final, TypeVar, cast

from intervalq.errors import CorruptState, StoreError, StoreUnavailable, Unauthorized, UnsupportedOperation
from intervalq.tasks.rules import Command, Modify, OutcomeRow, Outcomes, Worked
from intervalq_stores.redis._awaited import Awaited
from intervalq_stores.redis._client import Client
from intervalq_stores.redis._scripts import Script, script
from intervalq_stores.redis._task_codec import Arguments, answered, asked, notified
from intervalq_stores.redis._task_keys import KEYS, WAKE, day_keys, keys_of
from intervalq_stores.redis._task_outcomes import find, keys_of_days
from intervalq_stores.redis._task_rows import Unfit

A = TypeVar("A")

_POLICY: Final = "maxmemory_policy:"
_NEEDS_DAYS: Final = 3
"""The first part of an answer: nothing was done, because keys of these days of outcomes are needed."""
_TRIES: Final = 5
_MAX_PARTS: Final = 10_000
"""The maximum number of tasks in a batch: the server does nothing else while it inserts them."""
_KNOWN_DAYS: Final = 8
"""How many days of outcomes a store declares because earlier commands of the same kind used them."""


class RedisTaskStore:
    """Tasks in five keys. One connection, open while it is in use; wake-ups have their own.

    A server that is out of memory accepts no new tasks or changes, but existing tasks can be claimed and
    done.
    """

    keeps_outcomes: Final = True
    shares_keys: Final = True
    follows_up: Final = True
    tells_of_others: Final = True

    def __init__(self, url: str) -> None:
        self._server = Client(url, "tasks in Redis or Valkey")
        self._cluster = "1" if url.partition("://")[0].lower().endswith("+cluster") else ""
        self._days: dict[str, tuple[int, ...]] = {}
        self.url = self._server.url
        self._awaited = Awaited(self._server, lambda name, ids: self._ask(name, ids, None, KEYS))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`.

        A command is sent once. After a `StoreTimeout` it may have been done, or may still be done: tasks that
        it claimed are the session's until that ends or expires, and an insert can be repeated with the same
        id and `skip`.

        Raises:
            UnsupportedOperation: it inserts a batch of more than 10,000 tasks; nothing was done.
        """
        if isinstance(command, Modify) and len(command.inserts) > _MAX_PARTS + 1:  # and the follow-up
            raise UnsupportedOperation(
                self.url,
                f"a batch has at most {_MAX_PARTS} tasks here, because the server inserts them in one step "
                "and does nothing else meanwhile; nothing was done: use several batches, or another store",
            )
        try:
            if isinstance(command, Outcomes):
                return cast("A", await self._outcomes(command, now))
            name, arguments = asked(command)
            reply = await self._ask(name, arguments, now, keys_of(command))
        except (UnicodeEncodeError, Unfit) as error:
            raise StoreError(self.url, f"{error}; nothing was done: omit that value") from error
        remedy = (
            f"find it in the hash {KEYS[0]}; the command was done, and claims are given back when their "
            "session ends"
        )
        with self._readable("a task", remedy):
            return cast("A", answered(command, reply))

    async def _outcomes(self, command: Outcomes, now: int | None) -> tuple[OutcomeRow, ...]:
        async def ask(name: str, arguments: Arguments, days: tuple[int, ...]) -> list[Any]:
            return await self._ask(name, arguments, now, KEYS, days)

        with self._readable("an outcome", f"find it in the hash {day_keys('DAY')[0]}"):
            return await find(ask, command)

    async def _ask(
        self,
        name: str,
        arguments: Arguments,
        now: int | None,
        keys: tuple[str, ...],
        days: tuple[int, ...] = (),
    ) -> list[Any]:
        """Run a script, and again with the keys of other days if it needs these, and so has done nothing."""
        clock = "" if now is None else str(now)
        known = days or self._days.get(name, ())
        for _ in range(_TRIES):
            declared = (*keys, *keys_of_days(known))
            chance = str(random.getrandbits(31))
            sent = (str(len(declared)), *declared, name, clock, chance, self._cluster, *arguments)
            reply, _ = await self._server.run(keys[0], _script(name), *sent)
            with self._server.expected("a script"):
                if reply[0] != _NEEDS_DAYS:
                    return cast("list[Any]", reply)
                known = tuple(dict.fromkeys((*map(int, reply[1:]), *known)))
            self._days[name] = known[: max(_KNOWN_DAYS, len(reply) - 1)]
        raise StoreUnavailable(self.url, "the days of the outcomes to write changed again and again")

    @contextmanager
    def _readable(self, what: str, remedy: str) -> Iterator[None]:
        """Say what is broken, and where, if an answer can't be read."""
        try:
            yield
        except UnicodeEncodeError:  # it is the command's
            raise
        except (ValueError, TypeError, AttributeError, LookupError, struct_error) as error:
            why = "its text isn't UTF-8" if isinstance(error, UnicodeDecodeError) else "its data is invalid"
            raise CorruptState(self.url, f"{what} can't be read, because {why}: {remedy}") from None

    def awaited(self, ids: Sequence[str]) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """See `Telling.awaited`."""
        return self._awaited.awaited(ids)

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`."""
        async with self._server.messages(f"{WAKE}{session}") as heard:

            async def woken() -> Worked | None:
                return notified(await heard())

            yield woken

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of `ok`, `warning` or `error`, and a sentence."""
        try:
            text = await self._server.info("memory")
        except Unauthorized:
            return [("warning", "it is unknown whether tasks may be evicted: this user may not use INFO")]
        policy = next(
            (line[17:].strip() for line in text.splitlines() if line.startswith(_POLICY)), "unknown"
        )
        if policy == "noeviction" or policy.startswith("volatile"):  # tasks have no expiry
            return [
                ("ok", f"all tasks are in {len(KEYS)} keys with the tag {{tasks}}, which are never evicted")
            ]
        what = f"maxmemory-policy is {policy}: a full server may remove all tasks at once; set noeviction"
        return [("warning", what)]

    async def aclose(self) -> None:
        """See `TaskStore.aclose`."""
        await self._awaited.aclose()
        await self._server.close()


def _script(name: str) -> Script:
    """The script of a command."""
    return script(*_PARTS[name])


def _files(*parts: str) -> tuple[str, ...]:
    return tuple(f"tasks_{part}.lua" for part in ("table", "outcomes", "writes", *parts))


_PARTS: Final = {
    **dict.fromkeys(("acquire", "release"), ("tasks_locks.lua",)),
    "modify": _files("changes", "modify"),
    "cancel": _files("changes", "cancel"),
    "work": _files("changes", "work"),
    **dict.fromkeys(("begin", "beat", "end"), _files("changes", "sessions")),
    **dict.fromkeys(("await", "leave"), _files("await")),
    **dict.fromkeys(("select", "count", "sessions", "outcomes", "page", "days"), _files("looks")),
}

"""A session's calls to the store: each settles finished tasks and claims the next ones, in one step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import anyio

from intervalq._timing.backends import loop_clock
from intervalq._timing.outage import LoopOutage
from intervalq.errors import IntervalqError, QueueClosed, StoreError, StoreUnavailable, TransactionConflict
from intervalq.tasks._claim.endings import kept, unused
from intervalq.tasks._claim.task import Claim, Holder
from intervalq.tasks._session.begun import Begun
from intervalq.tasks._session.cancelled import CancelledClaims
from intervalq.tasks._session.demand import CHECK, FIRST_POLL, LAST_POLL, Demand, Together, offer, together
from intervalq.tasks._session.handed import Handed
from intervalq.tasks._session.ranges import OpenRange, OpenRanges
from intervalq.tasks._session.settlement import Settle, Settles
from intervalq.tasks.rules import Change, Delete, Finished, Row, Work, Worked
from intervalq.tasks.store import MAX_ROWS, Pulling, Ranging, TaskStore

log: Final = logging.getLogger("intervalq")

LINGER: Final = 0.004
"""Seconds that a worker's acknowledgements wait for others to join them, while there is nothing else to send.

Unacknowledged work is repeated if the process dies; but acknowledging each task at once is slow.
"""

_DRAIN: Final = 2.0
"""Seconds without claims before a session is replaced, so that its last claims are settled first."""


class Batcher:
    """Makes one call at a time: whatever comes in the meantime joins the next; batches grow with the load."""

    def __init__(self, store: TaskStore, owner: Holder, lapsed: Callable[[], None]) -> None:
        self.session = ""
        """The id of the session; empty: it has not begun."""
        self.claims: dict[str, Claim] = {}
        """Claims that are not known to be settled, except those in ranges."""
        self.hears = False
        """Whether the store sends wake-ups."""
        self.busy = 0
        """How many calls are in flight."""
        self.hurries = False
        """Whether everything is sent at once instead of waiting for more."""
        self.lost_call = False
        """Whether a call that claims got no answer in this session: the store may still do it, much later."""
        self.begun = Begun()
        self.breath = 0.0
        """When the runners of functions last yielded to the event loop."""
        self._now = loop_clock()
        self._store, self._owner = store, owner
        self._lapsed = lapsed  # called when the store no longer knows the session
        self._demands: list[Demand] = []
        self._settles, self.ranges, self._handed = Settles(), OpenRanges(), Handed()
        self._poked, self._is_poked = anyio.Event(), False
        self._doubt = False  # a call whose answer was lost may have claimed something
        self.cancelled = CancelledClaims(self, owner)
        self._has_orphans = False  # a call whose answer was lost may have claimed plain tasks
        self._claims_from = 0.0  # the time before which nothing is claimed
        self._rings = 0  # notices that there may be tasks
        self._lapses = 0  # lost sessions; claims of calls that began before the last loss are lost, too
        self._outage = LoopOutage()

    # --- requests -----------------------------------------------------------------------------------

    def add(self, demand: Demand) -> None:
        """Request a demand's tasks from now on."""
        self._demands.append(demand)
        self.poke()

    def drop(self, demand: Demand) -> None:
        """Stop requesting a demand's tasks."""
        if demand in self._demands:
            self._demands.remove(demand)
        self.poke()

    @property
    def wanted(self) -> bool:
        """Whether anybody wants tasks."""
        return bool(self._demands)

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to send to the store."""
        return not (self._settles or self.ranges.finished or self.busy)

    @property
    def is_to_end(self) -> bool:
        """Whether the session should be replaced: only that frees ranges whose claims got lost."""
        return self._has_orphans and self.at_rest and not (self.claims or self.ranges)

    def find(self, id_: str) -> Claim | None:
        """The claim of a task that is not known to be settled; None: there is none."""
        return self.claims.get(id_) or (self.ranges.find(id_) if self.ranges else None)

    def settle(self, settle: Settle) -> None:
        """Send a settlement to the store soon; that of a plain task once all of its range are settled."""
        claim = settle.claim
        if claim._range is not None:
            if not settle.keeps:
                self.forget(claim, settle.part if isinstance(settle.part, Change) else None)
            settle.end()
        else:
            claim.open = settle.keeps
            if not settle.keeps:
                self.begun.since.pop(claim, None)
            self._settles.add(settle, self._now)
        self.poke()

    def done(self, claim: Claim, result: str = "") -> None:
        """Remove a task that is done, without waiting: a fast form of `settle` for the most common case."""
        if claim._range is None:
            end = kept(claim._keep_for, claim._since, result, self._now()) if claim._keep_for else None
            self.settle(Settle(claim, Delete(claim._row.id, claim._row.version, end)))
        elif claim.open:
            self.begun.ended([claim])
            self.ranges.settle(claim, None, self._now)
            self.poke()

    def all_done(self, claims: Sequence[Claim]) -> None:
        """See `done`."""
        for claim in claims:
            if claim._range is None:
                self.done(claim)
        self.begun.ended(claims)
        self.ranges.all_done(claims, self._now)
        self.poke()

    def began(self, claim: Claim, at: float) -> None:
        """Note that a function runs the task since `at`; if it runs long, that is reported to the store."""
        claim._began = True
        self.begun.since[claim] = at
        self.poke()

    def poke(self) -> None:
        """Check again what to send, because something has changed."""
        if not self._is_poked:
            self._is_poked = True
            self._poked.set()

    def ask_now(self, *, missed: bool = False) -> None:
        """Ask for tasks now; `missed`: a notice of tasks that the store has claimed may have been lost."""
        self._handed.missed = self._handed.missed or missed
        self._rings += 1
        for demand in self._demands:
            demand.due = 0.0
        self.poke()

    # --- the conversation ---------------------------------------------------------------------------

    async def turn(self) -> None:
        """Make one call with all that there is to do, or wait until there is something."""
        now = self._now()
        demand = self._pick(now) if now >= self._claims_from or not (self.claims or self.ranges) else None
        if demand is None and self._due() > now:
            await self._rest(now)
            return
        batch = self._settles.take()
        begun = self.begun.take(now)
        finished = self.ranges.take(begun, now - LINGER)
        lapses, rings = self._lapses, self._rings
        command: Work | None = None
        self.busy += 1
        try:
            if self._doubt or self._handed.missed:
                await self._recover()
            command = self._command(demand, batch, finished, begun)
            if demand is not None:
                demand.asked(command.limit)
            worked = await self._store.apply(command)
        except (StoreUnavailable, TransactionConflict) as error:
            self._back(batch, finished, command if isinstance(error, StoreUnavailable) else None, lapses)
            self.begun.back(begun)
            if demand is not None:
                demand.asked(0)
            await self.bear(error)
        except IntervalqError as error:
            self.fail(error, batch)
        except BaseException:
            self._back(batch, finished, None, lapses)
            self.begun.back(begun)
            raise
        else:
            self._outage.ended()
            if lapses != self._lapses:  # the session was lost in the meantime: its claims are free again
                worked = replace(worked, claimed=(), ranges=())
            self.answered(batch, worked)
            self.begun.wake(begun)
            if demand is not None and worked.alive:
                self._deliver(demand, command, worked, rung=rings != self._rings)
        finally:
            self.busy -= 1

    def _pick(self, now: float) -> Demand | None:
        """The demand to serve: one that is due, or, if there is something to settle, any that wants tasks."""
        any_time = bool(self._settles or self.ranges.finished)
        for index, demand in enumerate(self._demands):
            if (any_time or demand.due <= now) and demand.room() > 0:
                if len(self._demands) > 1:
                    self._demands.append(self._demands.pop(index))  # the others first, next time
                return self._joined(demand)
        return None

    def _joined(self, demand: Demand) -> Demand:
        """The demand; or with other unmet ones on the same terms, if the store wakes sessions as a whole."""
        apart = len(self._demands) == 1 or not self.hears or isinstance(self._store, Pulling)
        return demand if apart else together(demand, self._demands)

    def _due(self) -> float:
        """When to call the store if no demand is due."""
        if self.ranges.finished or (self._settles and (self._settles.is_urgent or self.hurries)):
            return 0.0
        since = min(self._settles.since if self._settles else math.inf, self.ranges.since())
        return min(self.begun.due(), since + LINGER)

    async def _rest(self, now: float) -> None:
        wait = min([demand.due for demand in self._demands if demand.room() > 0], default=math.inf) - now
        if self.claims or self.ranges:
            wait = max(wait, self._claims_from - now)
        with anyio.move_on_after(max(0.0, min(wait, self._due() - now))):
            await self._poked.wait()
        self._poked, self._is_poked = anyio.Event(), False

    def _command(
        self, demand: Demand | None, batch: list[Settle], finished: list[Finished], begun: list[Claim]
    ) -> Work:
        settled = tuple([settle.now() for settle in batch])
        ids = tuple([claim._row.id for claim in begun if claim._range is None])
        if demand is None:
            return Work(self.session, settled, tuple(finished), begun=ids)
        limit = min(demand.room(), MAX_ROWS)
        return Work(
            self.session, settled, tuple(finished), demand.queues, limit, demand.lease, demand.most,
            idle=self.hears, begins=demand.begins(limit), begun=ids,
        )  # fmt: skip

    # --- answers ------------------------------------------------------------------------------------

    def answered(self, batch: list[Settle], worked: Worked) -> None:
        """Process the outcome of settlements, and wake those who wait for them."""
        lost, held = set(worked.lost), self.claims
        for settle in batch:
            claim = settle.claim
            may_be_done = settle.again and worked.alive and claim._row.until is None
            if claim._row.id in lost and not may_be_done:
                settle.lost = True
                if self.forget(claim):
                    self.cancelled.found_lost(claim)
                if settle.waker is None:
                    log.warning("%s", claim._lost())
            elif settle.keeps and isinstance(settle.part, Change):
                claim._row = settle.renewed()
            elif held.get(claim._row.id) is claim:  # no range, and no start to report
                del held[claim._row.id]
            settle.end()
        for range_ in worked.lost_ranges:
            log.warning("tasks %s to %s of queue %r were lost", range_.low, range_.high, range_.queue)
        if not worked.alive:
            self._lapsed()

    def hand(self, worked: Worked) -> None:
        """Take over what the store has claimed for this session, or has to report about its claims."""
        self.cancelled.learn(worked.cancelled)
        worked = replace(worked, claimed=tuple(self._handed.news(worked.claimed, self.claims)))
        for claim in self._taken(worked, begun=False):
            if not offer(claim, self._demands):
                self.settle(Settle(claim, unused(claim._row)))
            self._given([claim])

    def _taken(self, worked: Worked, *, begun: bool) -> list[Claim]:
        claims = self.take(worked.claimed)
        for range_, tasks in worked.ranges:
            claims += self.ranges.add(OpenRange(range_, tasks, self._owner, self.session, begun=begun))
        return claims

    def _deliver(self, demand: Demand, command: Work, worked: Worked, *, rung: bool) -> None:
        claims = self._taken(worked, begun=command.begins > 0)
        joined = isinstance(demand, Together)
        if len(claims) >= command.limit:
            demand.due, demand.poll = 0.0, FIRST_POLL
        else:
            demand.poll = FIRST_POLL if claims and not joined else min(demand.poll * 1.5, LAST_POLL)
            pause = FIRST_POLL if claims else demand.poll
            if command.idle and not claims:  # the store announces new ones if all demands were named
                pause = CHECK if joined or self._joined(demand) is demand else 0.0
            if worked.wait is not None:
                pause = min(pause, worked.wait / 1e6)
            demand.due = 0.0 if rung else self._now() + pause
        for claim in demand.deliver(claims):
            self.settle(Settle(claim, unused(claim._row)))
        if joined:
            self._given(claims)

    def _given(self, claims: Sequence[Claim]) -> None:
        """Note the starts of claims that begin when a caller gets them; workers report their own starts."""
        self.begun.since.update({claim: self._now() for claim in claims if claim._began and claim.open})

    def take(self, rows: Sequence[Row]) -> list[Claim]:
        """The claims for these rows."""
        claims = [Claim(row, self._owner) for row in rows]
        for claim in claims:
            before = self.find(claim._row.id)
            if before is not None and self.forget(before):  # its lease ended, or it was changed by force
                before._lose()
            self.claims[claim._row.id] = claim
        return claims

    def forget(self, claim: Claim, change: Change | None = None) -> bool:
        """Drop a settled or lost claim; return whether it was held. `change`: for an undone plain task."""
        if not self.holds(claim):
            return False
        self.begun.since.pop(claim, None)
        if claim._range is None:
            del self.claims[claim._row.id]
        else:
            self.ranges.settle(claim, change, self._now)
        return True

    def holds(self, claim: Claim) -> bool:
        """Whether the session has a claim, as far as this process knows."""
        if claim._range is None:
            return self.claims.get(claim._row.id) is claim
        return claim.open

    # --- trouble ------------------------------------------------------------------------------------

    def _back(self, batch: list[Settle], finished: list[Finished], sent: Work | None, lapses: int) -> None:
        """Keep what was not sent for the next call; lost if the session was replaced."""
        if sent is not None:
            self._doubt = self._doubt or sent.limit > 0
            self.lost_call = self.lost_call or sent.limit > 0
            for settle in batch:
                settle.again = True
        if lapses == self._lapses:
            self._settles.back(batch)
            self.ranges.finished[:0] = finished
            return
        for settle in batch:
            settle.lost = True
            settle.end()

    async def bear(self, error: StoreError) -> None:
        """Wait a little, and longer each time; after a minute, raise the error in waiting callers."""
        if not self._outage:
            log.warning("tasks: %s; trying again", error)
        if self._outage.failed():
            self.fail(error)  # workers go on waiting
        await self._outage.pause()

    def fail(self, error: IntervalqError, batch: Sequence[Settle] = ()) -> None:
        """Raise the error in all waiting callers; other settlements are sent again with the next call."""
        for settle in [*batch, *self._settles.take_all()]:
            if settle.waker is None and isinstance(error, StoreUnavailable):
                self._settles.add(settle, self._now)
            else:
                settle.error = error
                self._handed.missed |= settle.waker is None and self.forget(settle.claim)  # given back, then
                settle.claim.open = self.holds(settle.claim)
                settle.end()
        for demand in list(self._demands):
            demand.failed(error)

    def refuse(self) -> None:
        """Refuse tasks to all callers, and give back plain ones, because the handle is being closed."""
        self.ranges.finish_now()
        self.poke()
        for demand in [*self._demands]:
            demand.failed(QueueClosed(", ".join(demand.queues)))

    async def _recover(self) -> None:
        """Give back claims, of a call or of the store, whose answer or notice was lost."""
        doubt = self._doubt
        await self._handed.recover(self._store, self.session, self.claims)
        self._doubt = False
        if doubt and isinstance(self._store, Ranging):
            self._has_orphans = True
            self._claims_from = self._now() + _DRAIN

    def lose_all(self) -> None:
        """Drop all claims, because the session is gone."""
        self._lapses += 1
        held, self.claims = self.claims, {}
        for claim in held.values():
            claim._lose()
        self.ranges.lose_all()
        for settle in self._settles.take_all():
            settle.lost = True
            settle.end()
        self.begun.clear()
        self.cancelled.clear()
        self._doubt = self._handed.missed = self._has_orphans = self.lost_call = False
        self._claims_from = 0.0

"""`intervalq once`: of many hosts whose cron starts the same command, one runs it."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

import anyio
import click

from intervalq._hours.zone import shown
from intervalq._queue.options import Duration
from intervalq._show import warn
from intervalq._spec import parse
from intervalq._timing.outage import LoopOutage
from intervalq.cli._app import Failed
from intervalq.cli._options import BeforeCommand, examples, schedules_store_option, shared_store
from intervalq.cli._run.exec import TEMPORARY, check_program
from intervalq.cli._run.program import GRACE
from intervalq.cli._tasks.guarded import Guarded
from intervalq.errors import InvalidOption, StoreUnavailable
from intervalq.schedules import _lease
from intervalq.schedules._holder import Holder, Process, host_of, of_command
from intervalq.schedules._records import Records
from intervalq.schedules._times.plan import Plan
from intervalq.schedules.rules import Record, end, fire, skip, take_over
from intervalq.store import Store, open_store, scheduling, wall_clock

_EARLY: Final = 60_000_000
"""How much earlier than the store's clock, in microseconds, a host's clock may start a command."""

_MIN_LEASE: Final = 1_000_000
_SHOWN: Final = 10


@click.command(
    cls=BeforeCommand,
    epilog=examples(
        "intervalq once --name nightly --every 1d -- echo backup",
        "intervalq once --name report --cron '0 3 * * *' --timezone Europe/Berlin --wait -- echo report",
    ),
)
@click.option("--name", required=True, help="Name of the schedule, the same on all hosts.")
@click.option("--every", metavar="D", help="How often the hosts' cron starts this: 10m, 1h, 1d.")
@click.option("--cron", metavar="EXPRESSION", help="Instead of --every: the five fields of the crontab.")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="The zone of --cron.")
@click.option(
    "--grace", metavar="D", help="Run COMMAND at most this much late. Default: until the next time."
)
@click.option("--wait", is_flag=True, help="If another host runs it, wait for its end.")
@click.option(
    "--retry-after",
    metavar="D",
    help="Wait, and run it here if the host that runs it gives no sign of life for this time.",
)
@schedules_store_option
@click.pass_context
def once(
    ctx: click.Context,
    *,
    name: str,
    every: str | None,
    cron: str | None,
    timezone: str,
    grace: str | None,
    wait: bool,
    retry_after: str | None,
    store: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on one of many hosts.

    Let cron start this for the same time on as many hosts as you like. The first one runs COMMAND;
    the others say which one that is, and exit with 0 (with --wait, once it has ended). The time is the last
    one of --every or --cron on the store's clock; a host that is up to a minute early waits for it. The
    schedule appears in `intervalq schedule list`, and can be paused and dropped.

    COMMAND ends when this process does, however that ends. If its host dies, that is reported by the host
    that runs the next occurrence; with --retry-after, another host runs it again.

    The exit code is that of COMMAND where it runs. With --wait, hosts that waited exit with the same code, or
    with 75 if the host that ran it was lost. It is 75 after --grace, too.
    """
    if not command:
        raise InvalidOption("give the command to run after --, for example: -- echo backup")
    if (every is None) == (cron is None):
        raise InvalidOption("give one of --every and --cron: it says which starts are for the same time")
    shared_store(store)
    opened = open_store(store)
    made = _Once(
        opened,
        parse.name(name, what="name of a schedule"),
        Plan.of(every=every, cron=cron, timezone=timezone),
        None if grace is None else parse.duration(grace, what="--grace"),
        _lease_of(retry_after),
        waits=wait or retry_after is not None,
        retries=retry_after is not None,
    )
    check_program(command[0])
    guarded = Guarded(command)
    try:
        code = anyio.run(made.run, guarded)
    finally:
        guarded.close()
    ctx.exit(code)


def _lease_of(retry_after: Duration | None) -> int:
    if retry_after is None:
        return _lease.LEASE
    return parse.duration(retry_after, least=_MIN_LEASE, what="--retry-after")


class _Once:
    """One host's part in the occurrence."""

    def __init__(
        self,
        store: Store,
        name: str,
        plan: Plan,
        grace: int | None,
        lease: int,
        *,
        waits: bool,
        retries: bool,
    ) -> None:
        self._store, self._name, self._plan, self._grace, self._lease = store, name, plan, grace, lease
        self._waits, self._retries = waits, retries
        self._records = Records(scheduling(store), store.url)
        self._process = Process()
        self._scheduled = 0

    async def run(self, guarded: Guarded) -> int:
        """Take the occurrence or see who has it; returns the exit code."""
        code = 0
        async with anyio.create_task_group() as group:

            async def heed() -> None:
                nonlocal code
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
                    async for received in signals:
                        if guarded.pid is None:
                            code = 128 + received
                            group.cancel_scope.cancel()
                        elif not (guarded.has_terminal and received == signal.SIGINT):
                            guarded.send(received)

            group.start_soon(heed)
            try:
                code = await self._decide(guarded)
            finally:
                with anyio.move_on_after(GRACE, shield=True):
                    await self._store.aclose()
            group.cancel_scope.cancel()
        return code

    async def _decide(self, guarded: Guarded) -> int:
        outage = LoopOutage()
        while True:
            try:
                await self._records.look([self._name])
                before = self._records.get(self._name)
                if before is not None and self._process.has(before.holder, before.fired):
                    return await self._work(before, guarded)  # taken by a call whose answer was lost
                code = await self._step(before, guarded)
            except StoreUnavailable:
                if outage.failed():
                    raise
                await outage.pause()
                continue
            outage.ended()
            if code is not None:
                return code

    async def _step(  # noqa: PLR0911 - one for each verdict
        self, known: Record | None, guarded: Guarded
    ) -> int | None:
        """Take the occurrence, or see who has; None: look again."""
        records, now = self._records, self._records.now()
        self._scheduled = scheduled = self._scheduled or _nearest(self._plan, now)
        if now < scheduled:
            await anyio.sleep((scheduled - now) / 1e6)
            return None
        text = self._plan.to_text()
        if known is None:
            before = Record(plan=text, through=scheduled - 1, reported=scheduled - 1)
        else:
            before = replace(known, plan=text)
        holder = of_command(self._process.name(scheduled, wall_clock() - now))
        outcome = fire(before, scheduled, scheduled, now, holder, grace=self._grace, lease=self._lease)
        if outcome.verdict == "ours":
            if not await records.swap(self._name, outcome.record, earliest=scheduled):
                return None
            self._report(before)
            return await self._work(outcome.record, guarded)
        if outcome.verdict == "held":
            warn(f"{host_of(before.holder)} runs that of {self._time(before.fired)}: this one is left out")
            return 0 if await records.swap(self._name, skip(before, scheduled)) else None
        if outcome.verdict == "misfire":
            warn(f"it is too late for {self._time(scheduled)}")
            return TEMPORARY
        if outcome.verdict == "paused":
            warn("the schedule is paused")
            return 0
        return await self._see(before, guarded)

    async def _see(  # noqa: PLR0911 - one for each state of the other host
        self, taken: Record, guarded: Guarded
    ) -> int | None:
        """Say who has the occurrence, and wait for its end if that is wanted."""
        records, now, host = self._records, self._records.now(), host_of(taken.holder)
        if taken.fired is None or taken.fired < self._scheduled:
            warn(f"{self._time(self._scheduled)} is left out")
            return 0
        if not taken.running:
            found = Holder.of(taken.holder)
            code = 0 if found is None or found.code is None else found.code
            warn(f"{host} has run it" + (f": exit code {code}" if code else ""))
            return code if self._waits else 0
        if not self._waits:
            warn(f"{host} runs it" if now < taken.until else f"{host} ran it, and was lost")
            return 0
        if now < taken.until:
            await anyio.sleep(min(1.0, (taken.until - now) / 1e6))
            return None
        if not self._retries:
            warn(f"{host} ran it, and was lost: it is not known how far it came")
            return TEMPORARY
        holder = of_command(self._process.name(taken.fired, wall_clock() - now))
        after = take_over(taken, holder, now, self._lease)
        if not await records.swap(self._name, after):
            return None
        warn(f"{host} ran it, and was lost: it runs here now")
        return await self._work(after, guarded)

    async def _work(self, taken: Record, guarded: Guarded) -> int:
        """Run the command under the lease; returns its exit code."""
        code = None
        async with anyio.create_task_group() as group:
            group.start_soon(_lease.keep, self._records, self._name, taken, self._lease, group.cancel_scope)
            code = await guarded.run(taken.fence, min(GRACE, self._lease / _lease.MARGIN / 1e6))
            group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await self._end(taken.holder, code)
        if code is None:
            raise Failed(
                f"schedule {self._name!r}: the store couldn't be reached for the whole lease, so its command "
                "was ended: see with `intervalq doctor` whether the store can be reached"
            )
        return code

    async def _end(self, holder: str, code: int | None) -> None:
        def ended(record: Record | None, now: int) -> Record | None:
            if record is None:
                return None
            after = end(record, holder, now, finished=code is not None)
            return (
                after if after is record or after.running else replace(after, holder=of_command(holder, code))
            )

        try:
            await self._records.change(self._name, ended)
        except StoreUnavailable as error:
            warn(f"schedule {self._name}: its end can't be recorded: {error}")

    def _report(self, before: Record) -> None:
        """Say what was missed before this occurrence."""
        lost = before.fired if before.running else None
        if lost is not None:
            warn(f"{host_of(before.holder)} ran that of {self._time(lost)}, and was lost")
        missed = [at for at in self._plan.latest(before.reported, self._scheduled - 1, _SHOWN) if at != lost]
        if missed:
            warn(f"missed before this one: {', '.join(map(self._time, missed))}")

    def _time(self, at: int | None) -> str:
        return shown(self._plan.time(at or 0))


def _nearest(plan: Plan, now: int) -> int:
    """The occurrence that a start at `now` stands for: the last one, or one that comes very soon.

    Raises:
        InvalidOption: there is no such occurrence.
    """
    last, coming = plan.latest(0, now, 1), plan.after(now)
    if coming is not None and coming - now <= min(_EARLY, (coming - last[-1]) // 2 if last else _EARLY):
        return coming
    if not last:
        raise InvalidOption(f"a schedule {plan} has not occurred yet")
    return last[-1]

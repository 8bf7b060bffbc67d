# ruff: noqa: PLC0415 - each process imports what its contender needs, and the others may not be installed
"""One process of a scheduler, of intervalq or another library: it notes each occurrence until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

LOG = os.environ.get("SCHEDULES_LOG", os.devnull)
COUNT = int(os.environ.get("SCHEDULES_COUNT", "1"))
EVERY = int(os.environ.get("SCHEDULES_EVERY", "2"))
URL = os.environ.get("SCHEDULES_URL", "")


def note(name: str) -> None:
    """Note that a schedule fired. A line is one write, so no kill leaves half of one."""
    with Path(LOG).open("ab", buffering=0) as log:
        log.write(f"{name} {time.time()}\n".encode())


def intervalq() -> None:
    """`intervalq.schedules`: functions."""
    import anyio

    from intervalq.schedules import Schedules

    schedules = Schedules(URL)
    for number in range(COUNT):
        fired = partial(note, f"s{number}")
        schedules.every(EVERY, name=f"s{number}", misfire="all", overlap="wait")(fired)
    anyio.run(schedules.run)


def intervalq_durable() -> None:
    """`Tasks.schedule`; the driver takes the tasks."""
    import anyio

    from intervalq.tasks import Tasks

    async def main() -> None:
        tasks = Tasks(URL)
        tasks.worker("idle")(print)
        for number in range(COUNT):
            await tasks.schedule(f"s{number}", "out", f"s{number}", every=EVERY)
        await tasks.run()

    anyio.run(main)


def apscheduler_3() -> None:
    """APScheduler 3 with a job store in the database that the processes share."""
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.blocking import BlockingScheduler

    store = SQLAlchemyJobStore(url=URL.replace("postgresql://", "postgresql+psycopg://"))
    scheduler = BlockingScheduler(jobstores={"default": store})
    for number in range(COUNT):
        scheduler.add_job(
            note,
            "interval",
            seconds=EVERY,
            args=[f"s{number}"],
            id=f"s{number}",
            replace_existing=True,
            start_date="2020-01-01",
            misfire_grace_time=None,
            coalesce=False,
        )
    scheduler.start()


def apscheduler_4() -> None:
    """APScheduler 4 with its data store in the database."""
    from datetime import UTC, datetime

    from apscheduler import AsyncScheduler, CoalescePolicy, ConflictPolicy
    from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
    from apscheduler.eventbrokers.psycopg import PsycopgEventBroker
    from apscheduler.triggers.interval import IntervalTrigger
    from sqlalchemy.ext.asyncio import create_async_engine

    async def main() -> None:
        engine = create_async_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
        broker = PsycopgEventBroker.from_async_sqla_engine(engine)
        start = datetime.fromtimestamp(int(time.time()) // EVERY * EVERY, UTC)
        async with AsyncScheduler(SQLAlchemyDataStore(engine), broker) as scheduler:
            for number in range(COUNT):
                await scheduler.add_schedule(
                    note,
                    IntervalTrigger(seconds=EVERY, start_time=start),
                    args=[f"s{number}"],
                    id=f"s{number}",
                    coalesce=CoalescePolicy.all,
                    conflict_policy=ConflictPolicy.do_nothing,
                )
            await scheduler.run_until_stopped()

    asyncio.run(main())


def celery_beat() -> None:
    """Celery beat; the driver takes the messages."""
    from celery import Celery

    app = Celery("bench", broker=URL)
    app.conf.beat_schedule = {
        f"s{number}": {"task": "note", "schedule": float(EVERY), "args": [f"s{number}"]}
        for number in range(COUNT)
    }
    app.Beat(schedule=os.environ["SCHEDULES_STATE"], quiet=True).run()


def pgqueuer() -> None:
    """The scheduler of pgqueuer."""
    import asyncpg  # type: ignore[import-untyped]  # it has no types
    from pgqueuer import AsyncpgDriver, PgQueuer

    async def main() -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))
        for number in range(COUNT):

            async def fired(_: object, name: str = f"s{number}") -> None:
                note(name)

            queuer.schedule(f"s{number}", f"* * * * * */{EVERY}")(fired)
        await queuer.run()

    asyncio.run(main())


def pgqueuer_install() -> None:
    """Create the tables of pgqueuer."""
    import asyncpg  # type: ignore[import-untyped]  # it has no types
    from pgqueuer import AsyncpgDriver, Queries

    async def main() -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(URL))).install()

    asyncio.run(main())


KINDS: dict[str, Callable[[], None]] = {
    "intervalq": intervalq,
    "intervalq-durable": intervalq_durable,
    "apscheduler-3": apscheduler_3,
    "apscheduler-4": apscheduler_4,
    "celery-beat": celery_beat,
    "pgqueuer": pgqueuer,
    "pgqueuer-install": pgqueuer_install,
}

if __name__ == "__main__":
    # APScheduler stores functions by the name of their module.
    import _schedule_peer

    _schedule_peer.KINDS[sys.argv[1]]()

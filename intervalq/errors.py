"""Every error that intervalq raises: each carries its values and names the remedy."""

from __future__ import annotations

from intervalq._error import IntervalqError as IntervalqError  # noqa: PLC0414 - the root of all below
from intervalq._run_errors import BadResult as BadResult  # noqa: PLC0414 - these are of this page, too
from intervalq._run_errors import RowFailed as RowFailed  # noqa: PLC0414
from intervalq._run_errors import RunChanged as RunChanged  # noqa: PLC0414
from intervalq._run_errors import TooManyFailures as TooManyFailures  # noqa: PLC0414
from intervalq._run_errors import UnknownOutcome as UnknownOutcome  # noqa: PLC0414
from intervalq._text import plain as plain  # noqa: PLC0414 - stores import it from here
from intervalq._text import short as short  # noqa: PLC0414 - as above

# --- invalid arguments -----------------------------------------------------------------------------


class InvalidName(IntervalqError, ValueError):
    """A queue's name doesn't match `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`, or a key isn't text or is too long.

    Names of task queues have up to 120 characters, may also contain `/`, `=`, `:` and single spaces between
    others, and may begin with `/`.
    """

    def __init__(self, name: object, most: int = 128, more: str = "", *, what: str = "queue name") -> None:
        self.name, self.most, self.more = name, most, more
        use = f"use 1 to {most} of the characters A-Z a-z 0-9 {' '.join('._-' + more.strip())} "
        use += f"{'(and single spaces between them) ' if ' ' in more else ''}and begin with a "
        use += f"letter or a digit{' or /' if '/' in more else ''}"
        use = f"give text of 1 to {most} characters" if what == "key" else use
        super().__init__(f"{short(name)} is not a {what}: {use}")


class InvalidInterval(IntervalqError, ValueError):
    """An interval, rate or other duration is malformed or out of range."""

    def __init__(self, value: object, why: str) -> None:
        self.value = value
        super().__init__(f"{short(value)} {why}")


class InvalidOption(IntervalqError, ValueError):
    """An option is out of its range, or two options contradict each other."""


class UnknownStore(IntervalqError, ValueError):
    """No store for durable tasks, ledgers or queues, as needed, is registered for the scheme of a URL."""

    def __init__(
        self, scheme: str, known: list[str], *, group: str = "intervalq.stores", paces: bool = False
    ) -> None:
        self.scheme = scheme
        self.known = known
        self.group = group
        """The entry-point group that has no such scheme."""
        holds = {"intervalq.task_stores": "durable tasks", "intervalq.ledgers": "ledgers"}.get(group)
        remedy = f"install the package that provides it (entry-point group {group})"
        if paces:
            remedy = f"that store holds queues only; for {holds} use one of the others"
        what = f"store of {holds}" if holds else "store"
        super().__init__(
            f"no {what} is registered for {short(scheme + '://')}; known are {', '.join(known)}; {remedy}"
        )


class MissingExtra(IntervalqError, ImportError):
    """A driver or tool that is an optional part of intervalq isn't installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an optional part: pip install 'intervalq[{extra}]'")


class JavaNotFound(IntervalqError, RuntimeError):
    """There is no Java on this machine that Spark can use."""

    def __init__(self, looked: tuple[tuple[str, str], ...], oldest: int) -> None:
        self.looked = looked
        """Each place that was searched, and what was wrong there."""
        self.oldest = oldest
        """The oldest version that works."""
        details = "; ".join(f"{place}: {why}" for place, why in looked)
        super().__init__(
            f"Spark needs Java {oldest} or newer, and none was found ({details}): install Java {oldest}, or "
            "pip install 'intervalq[java]'"
        )


class PySparkTooOld(IntervalqError, RuntimeError):
    """The PySpark that is installed lacks something which this part of intervalq needs."""

    def __init__(self, what: str, least: str, found: str) -> None:
        self.least = least
        """The oldest version that has it."""
        super().__init__(f"{what} needs PySpark {least} or newer, and this is {found}: upgrade Spark")


# --- queues -----------------------------------------------------------------------------------------


class ConfigMismatch(IntervalqError):
    """A handle's settings disagree with those that the queue already runs with."""

    def __init__(self, queue: str, ours: str, theirs: str, *, fixed: str = "", command: str = "") -> None:
        self.queue, self.ours, self.theirs = queue, ours, theirs
        same = "use the same settings, also each=" if ":" in queue else "use the same settings"  # a key
        remedy = (
            f"{same}, omit them to use those of the queue, or change the queue for everybody with "
            f"queue.configure(...) or `{command or 'intervalq configure'}` (see also on_mismatch=)"
        )
        if fixed:
            remedy = f"its {fixed} can't be changed while it runs: use the same, or drop the queue first"
        super().__init__(f"queue {queue!r} runs with {theirs}, but this handle has {ours}: {remedy}")


class QueueExists(IntervalqError):
    """A handle with `new=True` found that its queue exists already."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"the store has a queue {queue!r} already: omit new=True to use it, rename yours, or drop it"
        )


class QueueNotFound(IntervalqError):
    """The store has no such queue. It is created by the first job of a handle that has an interval."""

    def __init__(self, queue: str, store: str = "") -> None:
        self.queue, self.store = queue, store
        remedy = "the first job with an interval, a rate or limits creates it"
        if ":" in queue:  # a key
            remedy = "it is forgotten when it has been idle for a minute, and its next job creates it"
        super().__init__(
            f"the store has no queue {queue!r}{plain(f' ({store})' if store else '')}: check name and store; "
            f"{remedy}"
        )


class ScheduleNotFound(IntervalqError):
    """The store has no such schedule. It is created when a process runs it for the first time."""

    def __init__(self, schedule: str, store: str = "") -> None:
        self.schedule, self.store = schedule, store
        super().__init__(
            f"the store has no schedule {short(schedule)}{plain(f' ({store})' if store else '')}: check name "
            "and store; a schedule is created by the first process that runs it"
        )


class QueueClosed(IntervalqError):
    """The queue's handle was closed, so this job won't start."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"this handle of queue {queue!r} was closed, so nothing begins: create a new handle to go on"
        )


class SlotTimeout(IntervalqError, TimeoutError):
    """No slot came within the caller's `timeout`, or it is known that none will; the job did not start."""

    def __init__(
        self, queue: str, seconds: float, retry_after: float | None = None, *, at_once: bool = False
    ) -> None:
        self.queue, self.seconds = queue, seconds
        self.retry_after = retry_after
        """Seconds until a job added now could begin; None: unknown, for example during a pause."""
        then = "" if retry_after is None else f" (a job added now could begin in {retry_after:.3g} s)"
        super().__init__(
            f"no slot of queue {queue!r} {'comes' if at_once else 'came'} within {seconds:g} s, so the job "
            f"did not start{then}: allow more time, add fewer jobs, or check with queue.inspect() or "
            "`intervalq status` whether the queue is paused"
        )


class SelfDeadlock(IntervalqError):
    """Jobs that wait for others, of their queue or in a circle of queues, take up all of `max_running`."""

    def __init__(self, queue: str, max_running: int) -> None:
        self.queue, self.max_running = queue, max_running
        super().__init__(
            f"a job waits for a job of queue {queue!r}, which can't begin before this one ends: this job and "
            f"others that wait take up all places (max_running={max_running}). Wait outside of the slot, "
            "allow more with max_running=, or give inner calls a queue of their own"
        )


class JobCancelled(IntervalqError):
    """The job was cancelled, by `Job.cancel()` or by the end of its event loop, so it has no result."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"the job of queue {queue!r} was cancelled before it had a result: add it again to run it"
        )


class WrongLoop(IntervalqError, RuntimeError):
    """A handle is used from an event loop other than the one it lives in."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"this handle of queue {queue!r} belongs to another event loop that still runs: create one "
            "handle per event loop, or use intervalq.sync from threads"
        )


class ForkedError(IntervalqError, RuntimeError):
    """A handle is used in a child process that was forked after the handle's first use."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"this handle of queue {queue!r} was in use before the process forked: create a new handle in "
            "the child, or use intervalq.sync, which does that by itself"
        )


# --- durable tasks ----------------------------------------------------------------------------------


class InvalidTask(IntervalqError, ValueError):
    """A task's value, id, or key can't be stored: not JSON, too large, or out of range."""


class UnreadableValue(IntervalqError, ValueError):
    """The stored value of a task or ledger row can't be read (no codec, another key, damage). It is kept."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        super().__init__(
            plain(
                f"the value of {what} can't be read: {why}. It is left as it is: give the handle the codec="
            )
            + " and the key that it was written with, or remove it"
        )


class DependencyError(IntervalqError):
    """Changes to tasks can't be made as a whole, so nothing was changed. The fields list what failed."""

    def __init__(
        self,
        *,
        inserts: tuple[str, ...] = (),
        changes: tuple[str, ...] = (),
        deletes: tuple[str, ...] = (),
        depends: tuple[str, ...] = (),
        claims: tuple[str, ...] = (),
    ) -> None:
        self.inserts = inserts
        """Tasks to insert whose id exists already."""
        self.changes = changes
        """Tasks to change that don't exist, or have another version."""
        self.deletes = deletes
        """Tasks to delete that don't exist, or have another version."""
        self.depends = depends
        """Tasks depended upon that don't exist, or have another version."""
        self.claims = claims
        """Tasks to change or delete that somebody else has claimed."""
        parts = (
            ("exist already", inserts),
            ("to change are gone or have another version", changes),
            ("to delete are gone or have another version", deletes),
            ("depended upon are gone or have another version", depends),
            ("are claimed by another session", claims),
        )
        details = "; ".join(f"tasks {', '.join(map(short, ids))} {what}" for what, ids in parts if ids)
        super().__init__(f"nothing was changed: {details}: read the tasks again, then decide")


class InboxFull(IntervalqError):
    """A key of a queue has as many tasks waiting as its inbox may hold; nothing was inserted."""

    def __init__(self, queue: str, key: str, limit: int) -> None:
        self.queue, self.key, self.limit = queue, key, limit
        super().__init__(
            f"the inbox of key {key!r} of queue {queue!r} holds at most {limit} tasks: insert again later, "
            "allow more with inbox=, or keep only the newest with replace=True"
        )


class ClaimLost(IntervalqError):
    """A worker lost its claim on a task: its session expired, or the task was changed. Drop the work."""

    def __init__(self, queue: str, id: str) -> None:  # noqa: A002 - as the task calls it
        self.queue, self.id = queue, id
        super().__init__(
            f"task {plain(id)} of queue {queue!r} is no longer claimed by this worker, and nothing was "
            "committed: drop this work; it was settled, or another worker has it, or somebody cancelled it"
        )


class LockLost(IntervalqError):
    """A lock was not refreshed in time, so somebody else may hold it. Async code under it was cancelled."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the lock {short(name)} was lost: it couldn't be refreshed in time. Give it a longer "
            "expiry, or don't block the event loop while you hold it"
        )
        self.name = name


class TooManyWaiting(IntervalqError):
    """As many calls of `fetch` already wait as the pull consumer allows; nothing was requested."""

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        super().__init__(
            f"{limit} calls of fetch() already wait for pull consumer {name!r}: let some of them end, or "
            "allow more with max_waiting="
        )


# --- runs over many rows -----------------------------------------------------------------------------


class LedgerNotFound(IntervalqError):
    """The store has no such ledger: it was never created, was dropped, or has expired."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the store has no ledger {short(name)}: check its name and the store; `intervalq ledger list`, "
            "or intervalq.ledger.ledgers(), lists those that exist"
        )


class RunCancelled(IntervalqError):
    """The run was cancelled, or another task stopped it; rows that ended before are kept in its ledger."""

    def __init__(self, run: str, *, by_task: bool = False) -> None:
        self.run, self.by_task = run, by_task
        if by_task:
            why = "was stopped by another task, whose error says why; start it again once that is mended"
        else:
            why = f"was cancelled; `intervalq ledger uncancel {run}` lets it go on"
        super().__init__(f"run {run!r} {why}")


# --- stores -----------------------------------------------------------------------------------------


class StoreError(IntervalqError):
    """The base class of the errors of a store. `store` is its URL without secrets."""

    def __init__(self, store: str, why: str) -> None:
        self.store = store
        super().__init__(plain(f"{store}: {why}"))


class StoreUnavailable(StoreError):
    """The store can't be reached; no job starts. Calls are retried with backoff before this is raised."""


class StoreTimeout(StoreUnavailable):
    """The store did not answer in time; whether it did what was asked is unknown."""


class StoreReadOnly(StoreUnavailable):
    """The store accepts no writes at the moment: a replica, or a read-only file."""


class StoreFull(StoreUnavailable):
    """The store has no room to write: a full disk, or a memory limit."""


class TransactionConflict(StoreError):
    """A transaction conflicted with another one (serialization, deadlock) and was rolled back. Try again."""


class Unauthorized(StoreError):
    """The store refuses these credentials, or they lack a right that is needed."""


class InsecureTransport(StoreError):
    """TLS failed: a wrong certificate of either side, or only one side uses TLS. The message has a remedy."""


class InsecurePath(StoreError):
    """A state file is a link, belongs to another user, or is in a folder where anybody may replace it."""


class CorruptState(StoreError):
    """A stored record was not written by intervalq, or its times are out of range. It is left as it is."""


class VersionMismatch(StoreError):
    """A record or schema in the store was written by a newer version of intervalq."""


class UnsupportedOperation(StoreError):
    """The store, or its server, can't do this at all, or can't do it atomically."""


class BackendUnsupported(StoreError):
    """The store's driver can't run on this event loop (for example an asyncio driver under trio)."""

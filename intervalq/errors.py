"""Every error that intervalq raises: each carries its values and says the remedy."""

from __future__ import annotations

from typing import Any

from intervalq._text import plain as plain  # noqa: PLC0414 - stores have it from here
from intervalq._text import short as short  # noqa: PLC0414 - as above


class IntervalqError(Exception):
    """The root of all errors of this package. Each can be pickled, and keeps its values."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[IntervalqError], args: tuple[Any, ...], values: dict[str, Any]) -> IntervalqError:
    """An error that was pickled: built without its constructor, which took other arguments."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error


# --- what a caller gave is not usable --------------------------------------------------------------


class InvalidName(IntervalqError, ValueError):
    """A queue's name or key is outside `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.

    Queues of tasks have up to 120 characters, which may be `/`, `=` and `:`, too; the first may be `/`.
    """

    def __init__(self, name: object, most: int = 128, more: str = "") -> None:
        self.name, self.most, self.more = name, most, more
        marks = " ".join("._-" + more)
        super().__init__(
            f"{short(name)} is not a queue name: use 1 to {most} of the characters A-Z a-z 0-9 {marks} "
            f"and begin with a letter or a digit{' or /' if '/' in more else ''}"
        )


class InvalidInterval(IntervalqError, ValueError):
    """An interval, rate or other duration is not one, or is out of its range."""

    def __init__(self, value: object, why: str) -> None:
        self.value = value
        super().__init__(f"{short(value)} {why}")


class InvalidOption(IntervalqError, ValueError):
    """An option is out of its range, or two options contradict each other."""


class UnknownStore(IntervalqError, ValueError):
    """No store is registered for the scheme of a URL, or none that can hold durable tasks, or ledgers."""

    def __init__(
        self, scheme: str, known: list[str], *, group: str = "intervalq.stores", paces: bool = False
    ) -> None:
        self.scheme = scheme
        self.known = known
        self.group = group
        """The entry-point group that has no such scheme."""
        holds = {"intervalq.task_stores": "durable tasks", "intervalq.ledgers": "ledgers"}.get(group)
        remedy = f"install the package that brings it (entry-point group {group})"
        if paces:
            remedy = f"that store paces queues; for {holds} use one of the others"
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
        """Each place that was looked at, and what was wrong there."""
        self.oldest = oldest
        """The oldest version that would do."""
        said = "; ".join(f"{place}: {why}" for place, why in looked)
        super().__init__(
            f"Spark needs Java {oldest} or newer, and none was found ({said}): install Java {oldest}, or "
            "pip install 'intervalq[java]'"
        )


# --- what the queue says ----------------------------------------------------------------------------


class ConfigMismatch(IntervalqError):
    """A handle's settings disagree with those that the queue already runs with."""

    def __init__(self, queue: str, ours: str, theirs: str) -> None:
        self.queue, self.ours, self.theirs = queue, ours, theirs
        super().__init__(
            f"queue {queue!r} runs with {theirs}, this handle has {ours}: use the same settings, leave "
            "them out to take those of the queue, or change the queue for everybody with "
            "queue.configure(...) or `intervalq configure`"
        )


class QueueNotFound(IntervalqError):
    """The store has no such queue: the first job makes it, of a handle that has an interval."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"the store has no queue {queue!r}: check name and store; the first job with interval= makes it"
        )


class QueueClosed(IntervalqError):
    """The queue's handle was closed, so this job won't start."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"this handle of queue {queue!r} was closed before the job began: make a new handle to go on"
        )


class SlotTimeout(IntervalqError, TimeoutError):
    """No slot came within the caller's `timeout`; the job did not start."""

    def __init__(self, queue: str, seconds: float) -> None:
        self.queue, self.seconds = queue, seconds
        super().__init__(
            f"no slot of queue {queue!r} came within {seconds:g} s, the job did not start: allow more "
            "time, add fewer jobs, or see with queue.inspect() whether the queue is paused"
        )


class SelfDeadlock(IntervalqError):
    """Jobs of this process have all places of `max_running`, and wait for more: the last of them is told."""

    def __init__(self, queue: str, max_running: int) -> None:
        self.queue, self.max_running = queue, max_running
        super().__init__(
            f"a job of queue {queue!r} waits for another job of it, which can't begin before this one ends: "
            f"it, and others that wait, have all places (max_running={max_running}). Wait after the slot has "
            "ended, allow more with max_running=, or give inner calls a queue of their own"
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
            f"this handle of queue {queue!r} was in use before the process forked: make a new handle in the "
            "child, or use intervalq.sync, which makes its own"
        )


# --- what durable tasks say -------------------------------------------------------------------------


class InvalidTask(IntervalqError, ValueError):
    """A task's value, id, or key can't be stored: no JSON, too large, or outside of its range."""


class UnreadableValue(IntervalqError, ValueError):
    """The value of a task or of a ledger's row can't be read: no codec, another key, or damage. It stays."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        super().__init__(
            plain(
                f"the value of {what} can't be read: {why}. It is left as it is: give the handle the codec="
            )
            + " and the key that it was written with, or remove it"
        )


class DependencyError(IntervalqError):
    """A change of tasks can't be made as a whole, so none of it was. Each field has the ids that failed."""

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
        """Tasks to change that are not there, or not at this version."""
        self.deletes = deletes
        """Tasks to delete that are not there, or not at this version."""
        self.depends = depends
        """Tasks depended upon that are not there, or not at this version."""
        self.claims = claims
        """Tasks to change or delete that somebody else has claimed."""
        parts = (
            ("exist already", inserts),
            ("to change are gone or have another version", changes),
            ("to delete are gone or have another version", deletes),
            ("depended upon are gone or have another version", depends),
            ("are claimed by another session", claims),
        )
        said = "; ".join(f"tasks {', '.join(map(short, ids))} {what}" for what, ids in parts if ids)
        super().__init__(f"nothing was changed: {said}: look at them again, and decide anew")


class InboxFull(IntervalqError):
    """A key of a queue has as many tasks waiting as its inbox may hold; nothing was inserted."""

    def __init__(self, queue: str, key: str, limit: int) -> None:
        self.queue, self.key, self.limit = queue, key, limit
        super().__init__(
            f"the inbox of key {key!r} of queue {queue!r} holds {limit} tasks at most: insert again later, "
            "allow more with inbox=, or keep only the newest with replace=True"
        )


class ClaimLost(IntervalqError):
    """A task is no longer this worker's: its session lapsed, or somebody changed the task. Drop its work."""

    def __init__(self, queue: str, id: str) -> None:  # noqa: A002 - as the task calls it
        self.queue, self.id = queue, id
        super().__init__(
            f"task {plain(id)} of queue {queue!r} is no longer claimed by this worker, nothing was committed:"
            " drop this work; another worker has the task, or it was changed by hand"
        )


class LockLost(IntervalqError):
    """A lock could not be refreshed in time: somebody else may have it. What ran under it was cancelled."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the lock {short(name)} was lost: it couldn't be refreshed before it expired. Give it a longer "
            "expiry, or don't block the event loop while you hold it"
        )
        self.name = name


class TooManyWaiting(IntervalqError):
    """As many calls of `fetch` wait as the pull consumer allows; nothing was asked for."""

    def __init__(self, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        super().__init__(
            f"{limit} calls of fetch() wait already for pull consumer {name!r}: let some of them end, or "
            "allow more with max_waiting="
        )


# --- runs over many rows -----------------------------------------------------------------------------


class BadResult(IntervalqError, ValueError):
    """What a function gave for a row isn't what its schema says. The row was called."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        of = f" for row {short(key)}" if key else ""
        super().__init__(f"what the function gave{of} doesn't fit the schema: {why}")


class UnknownOutcome(IntervalqError):
    """A row was started by a process that is gone, and may have been called; it isn't called again."""

    def __init__(self, run: str, key: str) -> None:
        self.run = run
        self.key = key
        super().__init__(
            f"row {short(key)} of run {run!r} was started by a process that died, so that its call may have "
            f"been made; find out, then `intervalq ledger forget {run} --unknown` lets such rows be called "
            'again (errors="column" reports them and goes on, on_unknown="retry" calls them again)'
        )


class RowFailed(IntervalqError):
    """A row's call failed for good in an earlier run that kept its errors."""

    def __init__(self, run: str, key: str, error: str) -> None:
        self.run = run
        self.key = key
        self.error = error
        super().__init__(
            f"row {short(key)} of run {run!r} failed before, and isn't called again: {error}; "
            f"`intervalq ledger forget {run} --failed` lets such rows be called again"
        )


class LedgerNotFound(IntervalqError):
    """The store has no such ledger: none was made, or it was dropped, or it has expired."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the store has no ledger {short(name)}: `intervalq ledger list`, or intervalq.ledger.ledgers(), "
            "says which there are; check name and store"
        )


class RunCancelled(IntervalqError):
    """The run was cancelled; rows that ended before are kept in its ledger."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run!r} was cancelled; `intervalq ledger uncancel {run}` lets it go on")


# --- what the store says ----------------------------------------------------------------------------


class StoreError(IntervalqError):
    """The root of the errors of a store. `store` is its URL without secrets."""

    def __init__(self, store: str, why: str) -> None:
        self.store = store
        super().__init__(plain(f"{store}: {why}"))


class StoreUnavailable(StoreError):
    """The store can't be reached; no job starts. Calls are tried again with backoff before this is raised."""


class StoreTimeout(StoreUnavailable):
    """The store did not answer in time; whether it did what was asked is unknown."""


class StoreReadOnly(StoreUnavailable):
    """The store takes no writes at the moment: a replica, or a read-only file."""


class StoreFull(StoreUnavailable):
    """The store has no room to write: a full disk, or a memory limit."""


class TransactionConflict(StoreError):
    """A transaction met another (serialization failure, deadlock) and was rolled back. Try again."""


class Unauthorized(StoreError):
    """The store refuses these credentials, or they may not do what is needed."""


class InsecureTransport(StoreError):
    """TLS was asked for and can't be had: a wrong certificate, or a server without. No password was sent."""


class InsecurePath(StoreError):
    """A state file is a link, belongs to somebody else, or lies where anybody may replace it."""


class CorruptState(StoreError):
    """A record in the store is not one that intervalq wrote. It is left as it is, never reset."""


class VersionMismatch(StoreError):
    """A record or schema in the store was written by a newer version of intervalq."""


class UnsupportedOperation(StoreError):
    """The store, or its server, can't do this as it must be done: all or nothing, or at all."""


class BackendUnsupported(StoreError):
    """The store's driver can't run on this event loop (for example an asyncio driver under trio)."""

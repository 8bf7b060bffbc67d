"""An outcome as users see it, and the errors of those who wait for one."""

from __future__ import annotations

from typing import Any, NamedTuple

from intervalq._spec import codec
from intervalq.errors import IntervalqError, plain, short
from intervalq.tasks._claim.values import USUAL, Form
from intervalq.tasks._spec.outcome import parsed
from intervalq.tasks._spec.row import OutcomeRow


class FailedAttempt(NamedTuple):
    """An attempt of a kept task that failed."""

    attempt: int
    """Its number, from 1."""
    at: float | None
    """When it failed, in seconds since 1970; None: unknown, because the task was not kept yet."""
    error: str


def failed_attempts(errors: str) -> list[FailedAttempt]:
    """The failed attempts in the stored text of all errors."""
    return [FailedAttempt(number, at / 1e6 if at else None, error) for at, number, error in parsed(errors)]


class Outcome:
    """What a kept task left when it ended. Times are seconds since 1970 on the store's clock."""

    __slots__ = ("_form", "_row")

    def __init__(self, row: OutcomeRow, form: Form = USUAL) -> None:
        self._row = row
        """The stored outcome."""
        self._form = form

    @property
    def id(self) -> str:
        """The task's id."""
        return self._row.id

    @property
    def queue(self) -> str:
        """The queue in which it ended; for a failed task, the one that it left for the dead-letter queue."""
        return self._row.queue

    @property
    def key(self) -> str | None:
        """Its exclusive key; None: it had none."""
        return self._row.key

    @property
    def state(self) -> str:
        """`done`; `failed`: it is in the dead-letter queue; `cancelled`: also if somebody removed it."""
        return self._row.state

    @property
    def value(self) -> Any:  # noqa: ANN401 - any JSON value
        """Its last value, parsed at each access.

        Raises:
            UnreadableValue: as for `Task.value`.
        """
        return codec.read(self._form.codec, self._row.json, f"task {self.id} of queue {self.queue!r}")

    @property
    def result(self) -> Any:  # noqa: ANN401 - any JSON value
        """What its function returned, parsed at each access; None: nothing, or changes, or it isn't done.

        Raises:
            UnreadableValue: as for `Task.value`.
        """
        if not self._row.result:
            return None
        return codec.read(self._form.codec, self._row.result, f"the result of task {self.id}")

    @property
    def attempts(self) -> int:
        """How many times a worker began with it."""
        return self._row.attempts

    @property
    def errors(self) -> list[FailedAttempt]:
        """Its failed attempts, in order. Once their texts have 32,000 characters, later ones are left out."""
        return failed_attempts(self._row.errors)

    @property
    def created(self) -> float:
        """When the task was inserted."""
        return self._row.created / 1e6

    @property
    def started(self) -> float | None:
        """When its last attempt began; None: it didn't end with a worker's function or claim."""
        return self._row.started / 1e6 if self._row.started else None

    @property
    def ended(self) -> float:
        """When it ended."""
        return self._row.ended / 1e6

    @property
    def until(self) -> float:
        """Until when this outcome is kept."""
        return self._row.until / 1e6

    @property
    def host(self) -> str | None:
        """The machine of the worker that ended it; None: no worker did."""
        return self._row.host or None

    @property
    def pid(self) -> int | None:
        """The process of that worker; None: no worker ended it."""
        return self._row.pid or None

    def __repr__(self) -> str:
        return f"<Outcome {plain(self.id)} of {self.queue!r}: {self.state}>"


class TaskFailed(IntervalqError):
    """The task whose result was asked for has failed: it is in the dead-letter queue."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        error = outcome.errors[-1].error if outcome.errors else "no error was kept"
        super().__init__(
            f"task {plain(outcome.id)} of queue {outcome.queue!r} failed in attempt {outcome.attempts}: "
            f"{plain(error)}. `intervalq tasks retry {plain(outcome.id)}` tries it again"
        )


class TaskCancelled(IntervalqError):
    """The task whose result was asked for was cancelled, or removed by somebody who didn't work on it."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(
            f"task {plain(outcome.id)} of queue {outcome.queue!r} was cancelled: insert it again if needed"
        )


class NoOutcome(IntervalqError):
    """There is neither such a task nor its outcome: it wasn't kept, isn't kept any more, or never existed."""

    def __init__(self, id: str, dead_in: str | None = None) -> None:  # noqa: A002 - as the task calls it
        self.id = id
        what = (
            f"the store has neither a task {short(id)} nor its outcome"
            if dead_in is None
            else f"task {short(id)} is in queue {dead_in!r}, and left no outcome"
        )
        super().__init__(f"{what}: insert tasks with keep=, and ask the same store while the outcome is kept")


for _public in (FailedAttempt, Outcome, TaskFailed, TaskCancelled, NoOutcome):
    _public.__module__ = "intervalq.tasks"  # where users find them

"""The commands on a ledger, each one atomic step, and their answer: serializable values."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from intervalq._spec.shape import shaped

Stage: TypeAlias = Literal["claimed", "started", "done", "failed"]
"""The stage of a row: held by a process, perhaps called, ended with a value, or ended with an error."""

Shown: TypeAlias = Literal["claimed", "started", "unknown", "free", "done", "failed"]
"""The state of a row as shown to users: `unknown` was started, and `free` only claimed, by a dead process."""


@shaped("a row that is")
class Row(NamedTuple):
    """A stored row of a ledger."""

    stage: Stage
    session: str
    """The process that holds it, or that ended it."""
    attempt: int
    """How many times it was claimed since it was last free: 2 or more if processes died while holding it."""
    value: str
    """JSON of the result, or of a description of the error; empty before the end."""
    at: int
    """When it reached this stage, in microseconds on the store's clock."""


@shaped("row")
class Seen(NamedTuple):
    """A row in a listing."""

    key: str
    shown: Shown
    attempt: int
    value: str
    at: int


class Verdict(NamedTuple):
    """What to do about a requested row."""

    kind: Literal["mine", "known", "busy", "unknown"]
    """`mine`: call it. `known`: it has ended. `busy`: a live process has it, or the run is cancelled; ask
    again. `unknown`: a process that died may have called it, and nobody may call it again."""
    attempt: int = 0
    value: str = ""
    """With `known`: see `Row.value`."""
    failed: bool = False
    """With `known`: whether the value describes an error."""


class Summary(NamedTuple):
    """A ledger in numbers."""

    created: int
    expires: int | None
    """When the ledger is removed, in microseconds on the store's clock; None: never."""
    cancelled: bool
    done: int
    failed: int
    claimed: int
    started: int
    unknown: int
    """Rows started by processes that died. (Rows that these only claimed are free, and not counted.)"""
    sessions: int
    """The number of live processes."""


class Ended(NamedTuple):
    """The end of a row, to be recorded."""

    key: str
    value: str
    failed: bool = False


class Claim(NamedTuple):
    """Claim rows that nobody has, and report the state of the others. Creates the ledger."""

    session: str
    expiry: int
    """Microseconds after which the session expires unless it sends a command."""
    keys: tuple[str, ...]
    started: bool = False
    """Mark them as started at once, because no `Start` will follow."""
    again: bool = True
    """Whether rows may be claimed that were started by a process that died."""


class Start(NamedTuple):
    """Mark rows of this session as about to be called."""

    session: str
    expiry: int
    keys: tuple[str, ...]


class Record(NamedTuple):
    """Record how rows ended. The first recorded end of a row counts, whoever sends it. Creates the ledger."""

    session: str
    expiry: int
    rows: tuple[Ended, ...]


class Release(NamedTuple):
    """Give rows of this session back, as if they had not been claimed."""

    session: str
    keys: tuple[str, ...]


class Beat(NamedTuple):
    """A heartbeat of the session. Creates the ledger."""

    session: str
    expiry: int


class Leave(NamedTuple):
    """End the session; rows that it still holds are treated as if its process had died."""

    session: str


class Cancel(NamedTuple):
    """Forbid claiming and starting rows; with `on` False, allow it again."""

    on: bool = True


class Expire(NamedTuple):
    """Remove the ledger at an instant of the store's clock, in microseconds; None: keep it."""

    at: int | None


class Forget(NamedTuple):
    """Remove rows that are in one of the states `shown`, whoever holds them."""

    keys: tuple[str, ...]
    shown: tuple[Shown, ...]


class Look(NamedTuple):
    """List rows, a page at a time."""

    cursor: str = ""
    """Where the previous page ended (`Answer.cursor`); empty: start at the beginning."""
    limit: int = 1_000
    """About how many rows; a page may have more or fewer, and an empty page need not be the last one."""


class Count(NamedTuple):
    """Summarize the ledger."""


class Drop(NamedTuple):
    """Remove the ledger."""


Command: TypeAlias = (
    Claim | Start | Record | Release | Beat | Leave | Cancel | Expire | Forget | Look | Count | Drop
)


class Answer(NamedTuple):
    """The answer to a command."""

    now: int
    """The store's clock, in microseconds."""
    found: bool
    """Whether the ledger exists after the command (with `Drop`: whether it existed)."""
    cancelled: bool = False
    verdicts: tuple[Verdict, ...] = ()
    """To `Claim`, `Start` and `Record`: one for each row, in their order."""
    removed: int = 0
    """To `Release` and `Forget`: how many rows were removed."""
    rows: tuple[Seen, ...] = ()
    """To `Look`: a row that exists all the time is in one of the pages, rarely in two."""
    cursor: str = ""
    """To `Look`: where the next page begins; empty: this was the last one."""
    summary: Summary | None = None
    """To `Count`."""

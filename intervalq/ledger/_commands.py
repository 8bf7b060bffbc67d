"""What can be done to a ledger: commands, each one atomic step, and their answer; values that can travel."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Stage: TypeAlias = Literal["claimed", "started", "done", "failed"]
"""How far a row is: held by a process, perhaps called, ended with a value, ended with an error."""

Shown: TypeAlias = Literal["claimed", "started", "unknown", "free", "done", "failed"]
"""A row as people see it: `unknown` was started, and `free` only claimed, by a process that is gone."""


class Row(NamedTuple):
    """A row of a ledger, as it is stored."""

    stage: Stage
    session: str
    """The process that holds it, or that ended it."""
    attempt: int
    """How often it was claimed since it was last free: 2 or more when processes died holding it."""
    value: str
    """JSON of the result, or of what is known of the error; empty before the end."""
    at: int
    """When it came to this stage, in microseconds on the store's clock."""


class Seen(NamedTuple):
    """A row as it is listed."""

    key: str
    shown: Shown
    attempt: int
    value: str
    at: int


class Verdict(NamedTuple):
    """What is to be done about a row that was asked for."""

    kind: Literal["mine", "known", "busy", "unknown"]
    """`mine`: call it. `known`: it has ended. `busy`: a live process has it, or the run is cancelled; ask
    again. `unknown`: a process that is gone may have called it, and nobody may call again."""
    attempt: int = 0
    value: str = ""
    """With `known`: see `Row.value`."""
    failed: bool = False
    """With `known`: whether the value tells of an error."""


class Summary(NamedTuple):
    """A ledger in numbers."""

    created: int
    expires: int | None
    """When all of it is forgotten, in microseconds on the store's clock; None: never."""
    cancelled: bool
    done: int
    failed: int
    claimed: int
    started: int
    unknown: int
    """Rows that were started by processes which are gone. (Those only claimed by such are free, no rows.)"""
    sessions: int
    """Processes that are alive."""


class Ended(NamedTuple):
    """A row's end, to be recorded."""

    key: str
    value: str
    failed: bool = False


class Claim(NamedTuple):
    """Take rows that nobody has, and say how it stands with the others. Makes the ledger."""

    session: str
    expiry: int
    """Microseconds after which the session is gone unless it says something."""
    keys: tuple[str, ...]
    started: bool = False
    """Note them as started at once, for there will be no `Start`."""
    again: bool = True
    """Whether rows may be taken that a process started which is gone."""


class Start(NamedTuple):
    """Note that rows of this session are about to be called."""

    session: str
    expiry: int
    keys: tuple[str, ...]


class Record(NamedTuple):
    """Write down how rows ended. The first end of a row counts, whoever brings it. Makes the ledger."""

    session: str
    expiry: int
    rows: tuple[Ended, ...]


class Release(NamedTuple):
    """Give rows of this session back, as if they had not been claimed."""

    session: str
    keys: tuple[str, ...]


class Beat(NamedTuple):
    """Say that the session lives. Makes the ledger."""

    session: str
    expiry: int


class Leave(NamedTuple):
    """End the session; what it still holds is as if its process had died."""

    session: str


class Cancel(NamedTuple):
    """Let nobody claim or start rows; or, with `on` False, let them again."""

    on: bool = True


class Expire(NamedTuple):
    """Forget the whole ledger at an instant of the store's clock, in microseconds; None: keep it."""

    at: int | None


class Forget(NamedTuple):
    """Remove rows if they are as `shown` says, whoever holds them."""

    keys: tuple[str, ...]
    shown: tuple[Shown, ...]


class Look(NamedTuple):
    """List rows, a page at a time."""

    cursor: str = ""
    """Where the page before ended (`Answer.cursor`); empty: at the beginning."""
    limit: int = 1_000
    """About how many; a page may have more, or fewer, and there may be another one after an empty one."""


class Count(NamedTuple):
    """Say what is in it."""


class Drop(NamedTuple):
    """Remove the ledger."""


Command: TypeAlias = (
    Claim | Start | Record | Release | Beat | Leave | Cancel | Expire | Forget | Look | Count | Drop
)


class Answer(NamedTuple):
    """What a command was answered."""

    now: int
    """The store's clock, in microseconds."""
    found: bool
    """Whether there is such a ledger, now that the command is done (with `Drop`: whether there was)."""
    cancelled: bool = False
    verdicts: tuple[Verdict, ...] = ()
    """To `Claim`, `Start` and `Record`: one for each row, in their order."""
    removed: int = 0
    """To `Release` and `Forget`: how many rows were removed."""
    rows: tuple[Seen, ...] = ()
    """To `Look`: a row that is there all the time comes in one of the pages, and seldom in two."""
    cursor: str = ""
    """To `Look`: where the next page begins; empty: this was the last one."""
    summary: Summary | None = None
    """To `Count`."""

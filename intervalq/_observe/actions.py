"""What somebody changed for everybody: a log record for each action, and the file that keeps these."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

log: Final = logging.getLogger("intervalq.actions")

DONE: Final = "done"

MAX_SHOWN: Final = 200
"""The maximum number of actions in a list."""

_TAIL: Final = 1 << 17
"""How many bytes at the end of the file are read: several hundred actions."""

_MINUTE: Final = 60.0
_MAX_COOLED: Final = 1_000


class Action(NamedTuple):
    """What somebody did."""

    who: str
    """`user@host` of a process, or the name that a service's access file gives a caller."""
    action: str
    """For example `pause`."""
    subject: str
    """For example `queue api`."""
    result: str
    """`done`, a number of tasks, or an error."""
    store: str
    """The URL of the store, without secrets."""
    at: float
    """Seconds since 1970, on the clock of the machine where it was done."""


def note(who: str, action: str, subject: str, store: str, result: str = DONE) -> Action:
    """Write down what somebody did, as a log record with the fields of an `Action`."""
    noted = Action(who, action, subject, result, store, time.time())
    how = "" if result == DONE else f": {result}"
    log.info("%s: %s %s%s", who, action, subject, how, extra=dict(zip(_FIELDS, noted, strict=False)))
    return noted


_FIELDS: Final = Action._fields[:-1]


def user() -> str:
    """The user and host of this process."""
    try:
        import pwd  # noqa: PLC0415 - not on Windows

        name = pwd.getpwuid(os.getuid()).pw_name
    except (ModuleNotFoundError, AttributeError):
        name = os.environ.get("USERNAME", "")
    except KeyError:  # in a container, perhaps
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


class Acting:
    """An action that goes on."""

    result = DONE
    """See `Action.result`."""


@contextmanager
def acting(action: str, subject: str, store: str) -> Iterator[Acting]:
    """Write down an action of this process when it has ended, with its error if it failed."""
    acting = Acting()
    try:
        yield acting
    except BaseException as error:
        why = str(error) or type(error).__name__
        acting.result = why if acting.result == DONE else f"{acting.result}; {why}"
        raise
    finally:
        note(user(), action, subject, store, acting.result)


# --- the file ----------------------------------------------------------------------------------------


def kept_in() -> Path:
    """The file that keeps actions: that of `INTERVALQ_ACTIONS`, else one in the user's state folder.

    Raises:
        OSError: the user has no home, as in some containers.
    """
    if named := os.environ.get("INTERVALQ_ACTIONS"):
        return Path(named)
    from platformdirs import user_state_path  # noqa: PLC0415 - only needed without the variable

    try:
        return user_state_path("intervalq") / "actions.jsonl"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, str(error)) from None


class Keeper(logging.Handler):
    """Appends actions to the file, one line of JSON each. It is open only meanwhile, so it may be rotated.

    Jobs whose server refuses them cool a queue down many times a second: one line a minute tells of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cooled: dict[tuple[str, ...], float] = {}  # when a line told of these cool-downs
        self.trouble = ""
        """Why an action couldn't be written; empty: all of them could."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, **{name: getattr(record, name, "") for name in _FIELDS}}
        if line["action"] == "cool-down" and self._is_repeated(tuple(line.values())[1:], record.created):
            return
        try:
            path = kept_in()
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab", buffering=0, opener=_private) as file:  # one write: lines don't mix
                file.write(f"{json.dumps(line)}\n".encode())
        except OSError as error:  # the action was done
            named = error.filename or os.environ.get("INTERVALQ_ACTIONS") or "actions.jsonl"
            self.trouble = f"{named}: {error.strerror}"

    def _is_repeated(self, what: tuple[str, ...], now: float) -> bool:
        at = self._cooled.get(what)
        if at is not None and now - _MINUTE < at <= now:
            return True
        if len(self._cooled) >= _MAX_COOLED:
            self._cooled.clear()
        self._cooled[what] = now
        return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def keeping() -> Iterator[Keeper]:
    """Keep the actions of this process in the file."""
    keeper, level = Keeper(), log.level
    log.addHandler(keeper)
    log.setLevel(logging.INFO)
    try:
        yield keeper
    finally:
        log.removeHandler(keeper)
        log.setLevel(level)


def last_actions(stores: Collection[str]) -> list[Action]:
    """The last actions on these stores that the file has, the latest first."""
    try:
        with kept_in().open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read().splitlines()
    except OSError:  # there is none
        return []
    found = [action for line in reversed(lines) if (action := _read(line)) is not None]
    return [action for action in found if action.store in stores][:MAX_SHOWN]


def _read(line: bytes) -> Action | None:
    """The action in a line; None: the line is none, or only the end of one."""
    try:
        data: Any = json.loads(line)
        at = datetime.fromisoformat(data["time"]).astimezone(UTC).timestamp()
        who, action, subject, result, store = (str(data[name]) for name in _FIELDS)
        return Action(who, action, subject, result, store, at)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None

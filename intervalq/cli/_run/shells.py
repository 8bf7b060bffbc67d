"""Finds places in a command where a line of input would become the script of a shell. Pure functions."""

from __future__ import annotations

from typing import Final

from intervalq.cli._run.jobs import has_field
from intervalq.errors import InvalidOption, short

_SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "ksh", "mksh", "rbash", "rksh", "yash", "zsh"})
_WITH_VALUE: Final = frozenset({"o", "O"})
"""Options of shells that take the next word, as --rcfile and --init-file do."""


def refuse_scripts(command: tuple[str, ...]) -> None:
    """Make sure that no placeholder is inside the script of a shell, wherever the command names a shell.

    Raises:
        InvalidOption: one is. The shell would run the text of the line, whatever quotes surround it.
    """
    for place, word in enumerate(command):
        if word.rpartition("/")[2] not in _SHELLS:
            continue
        script = _script(command[place + 1 :])
        if script is None:
            continue
        if script == "" and not any(map(has_field, command)):
            script = "{}"  # the line is appended to the command
        if has_field(script):
            raise InvalidOption(
                f"{short(script)} is a script of {short(word)}, which would run whatever a line contains: "
                """pass it as an argument, as in sh -c 'echo "$1"' sh {}; if lines are scripts themselves, """
                """sh -c 'eval "$1"' sh {}"""
            )


def _script(words: tuple[str, ...]) -> str | None:
    """The script among these arguments of a shell; None: it has none; empty: -c without a script."""
    is_script = False
    found = ""
    rest = iter(words)
    for word in rest:
        if word == "--" or not word.startswith(("-", "+")) or word in {"-", "+"}:
            if word in {"--", "-"}:
                word = next(rest, "")  # noqa: PLW2901 - the end of the options
            return found + word if is_script else None
        if word.startswith("--"):
            if word in {"--rcfile", "--init-file"}:
                next(rest, None)
            continue
        is_script = is_script or "c" in word
        found += word if has_field(word) else ""
        if word[-1] in _WITH_VALUE:
            next(rest, None)
    return found if is_script else None

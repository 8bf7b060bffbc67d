"""Finds places of a command where a line of input would become a script of a shell. Pure."""

from __future__ import annotations

from typing import Final

from intervalq.cli._run.jobs import has_field
from intervalq.errors import InvalidOption, short

_SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "ksh", "mksh", "rbash", "rksh", "yash", "zsh"})
_WITH_VALUE: Final = frozenset({"o", "O"})
"""Options of shells that take the next word, as --rcfile and --init-file do."""


def refuse_scripts(command: tuple[str, ...]) -> None:
    """Make sure that no field is inside of what a shell takes for its script, wherever the shell is named.

    Raises:
        InvalidOption: one is. What a line holds would be run, whatever quotes are around the field.
    """
    for place, word in enumerate(command):
        if word.rpartition("/")[2] not in _SHELLS:
            continue
        script = _script(command[place + 1 :])
        if script is None:
            continue
        if script == "" and not any(map(has_field, command)):
            script = "{}"  # the line is put behind the command
        if has_field(script):
            raise InvalidOption(
                f"{short(script)} is a script of {short(word)}, which would run whatever a line holds: hand "
                """it over as an argument, as in sh -c 'echo "$1"' sh {}; if lines are scripts themselves, """
                """sh -c 'eval "$1"' sh {}"""
            )


def _script(words: tuple[str, ...]) -> str | None:
    """What comes before or after these words of a shell as its script; None: it has none. Empty: it lacks."""
    is_script = False
    said = ""
    rest = iter(words)
    for word in rest:
        if word == "--" or not word.startswith(("-", "+")) or word in {"-", "+"}:
            if word in {"--", "-"}:
                word = next(rest, "")  # noqa: PLW2901 - the end of the options
            return said + word if is_script else None
        if word.startswith("--"):
            if word in {"--rcfile", "--init-file"}:
                next(rest, None)
            continue
        is_script = is_script or "c" in word
        said += word if has_field(word) else ""
        if word[-1] in _WITH_VALUE:
            next(rest, None)
    return said if is_script else None

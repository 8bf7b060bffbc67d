"""Finds places in a command where a line of input would become a script. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from intervalq.cli._run.jobs import has_field
from intervalq.errors import InvalidOption, short

_SHELLS: Final = frozenset(
    {"sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash", "rksh", "tcsh", "yash", "zsh"}
)
_WITH_VALUE: Final = frozenset({"o", "O"})
"""Options of shells that take the next word, as --rcfile and --init-file do."""

_SSH_WITH_VALUE: Final = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
"""Options of ssh that take the next word."""


class _Interpreter(NamedTuple):
    """A program with options whose value is a script."""

    scripts: str
    """The letters of these options."""
    others: str
    """The letters of other options that take the next word."""
    operands: int = 0
    """How many other words may come before the option."""


_INTERPRETERS: Final = {
    **dict.fromkeys(("python", "pypy"), _Interpreter("c", "WX")),
    "perl": _Interpreter("eE", "I"),
    "ruby": _Interpreter("e", "CIr"),
    **dict.fromkeys(("node", "nodejs"), _Interpreter("ep", "Cr")),
    "php": _Interpreter("rBRE", "cdz"),
    "lua": _Interpreter("e", "l"),
    "env": _Interpreter("S", "uC"),
    **dict.fromkeys(("su", "runuser"), _Interpreter("c", "gGsw", operands=1)),
    "flock": _Interpreter("c", "Ew", operands=1),
    "script": _Interpreter("c", "BEImOoT", operands=1),
}
_LONG: Final = ("--command=", "--eval=", "--print=", "--split-string=")
"""The same options in words."""


def refuse_scripts(command: tuple[str, ...]) -> None:
    """Make sure that no placeholder is inside a script, wherever the command names a shell or the like.

    Raises:
        InvalidOption: one is. What the line contains would be executed, whatever quotes surround it.
    """
    appends = not any(map(has_field, command))
    for place, word in enumerate(command):
        name, words = word.rpartition("/")[2], command[place + 1 :]
        if name in _SHELLS:
            script = _script(words)
        elif (found := _INTERPRETERS.get(name.rstrip("0123456789."))) is not None:
            script = _value(words, found)
        elif name == "ssh":
            _refuse_far_script(word, words, appends=appends)
            continue
        else:
            continue
        if script == "" and appends:
            script = "{}"  # the line is appended to the command
        if script is not None and has_field(script):
            raise InvalidOption(
                f"{short(script)} is a script of {short(word)}, which would run whatever a line contains: "
                """pass it as an argument, as in sh -c 'echo "$1"' sh {} or python -c 'import sys; """
                """print(sys.argv[1])' {}; if lines are scripts themselves, sh -c 'eval "$1"' sh {}"""
            )


def _refuse_far_script(word: str, words: tuple[str, ...], *, appends: bool) -> None:
    """Refuse a command for another machine that has a placeholder, or to which the line is appended."""
    _, *far = list(_operands(words, _SSH_WITH_VALUE)) or [""]
    if any(map(has_field, far)) or (appends and any(_operands(words, _SSH_WITH_VALUE))):
        raise InvalidOption(
            f"{short(word)} lets a shell on the other machine run what follows its host, and so whatever a "
            """line contains: quote it, as in bash -c 'ssh HOST "echo ${1@Q}"' bash {}"""
        )


def _operands(words: tuple[str, ...], with_value: frozenset[str]) -> Iterator[str]:
    """The words from the first one on that is neither an option nor the value of one."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if not word.startswith("-"):
            yield word
            break
        if word[-1] in with_value and not with_value.intersection(word[1:-1]):
            next(rest, None)
    yield from rest


def _value(words: tuple[str, ...], kind: _Interpreter) -> str | None:
    """The script among these arguments of an interpreter; None: it has none; empty: it isn't there yet."""
    operands = 0
    rest = iter(words)
    for word in rest:
        if word == "--":
            return None
        if not word.startswith("-") or (word == "-" and not kind.operands):  # `su -` is an option
            operands += 1
            if operands > kind.operands and not (kind is _INTERPRETERS["env"] and "=" in word):
                return None
            continue
        if word.startswith("--"):
            if word.startswith(_LONG):
                return word.partition("=")[2]
            if f"{word}=" in _LONG:
                return next(rest, "")
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in kind.scripts:
                return word[place:] or next(rest, "")
            if letter in kind.others:
                if not word[place:]:
                    next(rest, None)
                break
    return None


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
            if word.startswith("--command="):
                return word.partition("=")[2]
            if word in {"--rcfile", "--init-file"}:
                next(rest, None)
            is_script = is_script or word == "--command"
            continue
        is_script = is_script or "c" in word
        found += word if has_field(word) else ""
        if word[-1] in _WITH_VALUE:
            next(rest, None)
    return found if is_script else None

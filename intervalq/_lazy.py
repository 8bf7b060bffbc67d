"""Imports parts of a package at their first use: few programs need all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Final

_PLACES: Final[dict[str, str]] = {}


def lazy_names(
    package: str, modules: Mapping[str, str], *, needs: Collection[str] = (), what: str = "", extra: str = ""
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports its public names at their first use.

    Args:
        package: its name.
        modules: the module in the package that has each public name. If both names are the same, the public
            name is the module itself.
        needs: the top-level packages that the extra installs.
        what: what needs the extra, for the message.
        extra: the name of the extra.
    """

    def get(name: str) -> Any:  # noqa: ANN401 - any public name
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{modules[name]}")
            found = module if modules[name] == name else getattr(module, name)
        except ImportError as missing:
            if (missing.name or "").partition(".")[0] in needs:
                from intervalq.errors import MissingExtra  # noqa: PLC0415 - only for this error

                raise MissingExtra(what, extra) from missing
            raise
        setattr(sys.modules[package], name, found)  # the next use finds it there
        return found

    return get


def provide(what: str, place: str) -> None:
    """Register a function, as `module:name`, for lower modules, which know only what it does.

    The top of the package registers it, because only the top may know all parts.
    """
    _PLACES[what] = place


def provided(what: str) -> Any:  # noqa: ANN401 - any function
    """Import and return the function that is registered for this."""
    from pkgutil import resolve_name  # noqa: PLC0415 - few programs need it

    return resolve_name(_PLACES[what])

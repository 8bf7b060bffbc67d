"""What is imported when it is first used: few programs need all of a package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Final

_PLACES: Final[dict[str, str]] = {}


def lazy_names(
    package: str, modules: Mapping[str, str], *, needs: Collection[str] = (), what: str = "", extra: str = ""
) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        modules: the module, within the package, of each public name; one of the same name is meant itself.
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
    """Say where the function is that lower modules know only by what it does: `module:name`.

    The top of the package says so, as it alone may know all parts.
    """
    _PLACES[what] = place


def provided(what: str) -> Any:  # noqa: ANN401 - any function
    """The function that does this, imported by now."""
    from pkgutil import resolve_name  # noqa: PLC0415 - few programs need it

    return resolve_name(_PLACES[what])

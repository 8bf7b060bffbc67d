"""Public names of a package that are imported when they are first used: few programs need all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


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

"""Public names of a package that are imported when they are first used, because they need an extra."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from intervalq.errors import MissingExtra


def lazy_names(
    package: str, modules: Mapping[str, str], *, needs: Collection[str], what: str, extra: str
) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        modules: the module, within the package, of each public name.
        needs: the top-level packages that the extra installs.
        what: what needs the extra, for the message.
        extra: the name of the extra.
    """

    def get(name: str) -> Any:  # noqa: ANN401 - any public name
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{modules[name]}"), name)
        except ImportError as missing:
            if (missing.name or "").partition(".")[0] in needs:
                raise MissingExtra(what, extra) from missing
            raise

    return get

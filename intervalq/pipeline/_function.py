"""Functions that a spec names: found in its folder or in installed packages, and sent to executors."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from intervalq.errors import InvalidOption, short

_TARGET: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Function:
    """A function and where it came from."""

    target: str
    call: Callable[..., Any] = field(repr=False)
    folder: Path = field(repr=False)

    def may_travel(self) -> None:
        """Have it pickled with all that it uses from the spec's folder, which executors don't have.

        Code of installed packages isn't sent: executors have it, as they have intervalq.
        """
        from pyspark import cloudpickle  # noqa: PLC0415 - an extra

        send: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
        for module in list(sys.modules.values()):
            if _is_of(module, self.folder):
                send(module)


def function_of(target: str, folder: Path) -> Function:
    """The function that `module:name` names.

    Raises:
        InvalidOption: there is none, or its module can't be imported.
    """
    if not _TARGET.fullmatch(target):
        raise InvalidOption(f'{short(target)} is not "module:name": "calls:fetch" is `fetch` in calls.py')
    module_name, _, name = target.partition(":")
    found: object = _module(module_name, folder)
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidOption(f"module {module_name} has no {name}: check the name")
        found = getattr(found, part)
    if not callable(found):
        raise InvalidOption(f"{target} is not a function but {short(found)}")
    return Function(target, found, folder)


def _module(name: str, folder: Path) -> ModuleType:
    top = name.partition(".")[0]
    here = (folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists()
    if here and top not in sys.stdlib_module_names:
        for known in [one for one in sys.modules if one == top or one.startswith(f"{top}.")]:
            if not _is_of(sys.modules[known], folder):
                del sys.modules[known]  # it has the same name, but belongs to another spec
    importlib.invalidate_caches()  # the file may be newer than Python's cache of the folder
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise InvalidOption(
                f"there is no module {error.name}, neither in {folder} nor installed: put it beside the spec"
            ) from None
        raise InvalidOption(f"module {name} can't be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))


def _is_of(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":
        return False
    # A virtual environment in the folder is not part of the spec.
    return Path(file).is_relative_to(folder) and "site-packages" not in Path(file).parts

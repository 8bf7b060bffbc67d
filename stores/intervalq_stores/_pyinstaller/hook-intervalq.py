"""What PyInstaller has to pack but doesn't find: all stores, with their SQL and Lua."""

from __future__ import annotations

from pathlib import Path
from pkgutil import walk_packages
from typing import Final

import intervalq_stores

_FOLDERS: Final = [Path(folder) for folder in intervalq_stores.__path__]

# The names are fixed by PyInstaller.
hiddenimports = [module.name for module in walk_packages(intervalq_stores.__path__, "intervalq_stores.")]
datas = [
    (str(path), str(path.parent.relative_to(folder.parent)))
    for folder in _FOLDERS
    for path in sorted(folder.rglob("*"))
    if path.suffix in {".sql", ".lua"}
]

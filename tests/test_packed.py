"""intervalq in an application that was packed into one file: no metadata of packages, no files of its own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("anyio", "filelock", "idna", "platformdirs", "typing_extensions")

PROGRAM = """
import sys
from importlib.metadata import PackageNotFoundError, version
import anyio
import intervalq
from intervalq.errors import UnknownStore
from intervalq.ledger.store import open_ledger_store
from intervalq.store import open_store
from intervalq.tasks import Tasks

try:
    sys.exit(f"there is metadata of {version('intervalq')}")
except PackageNotFoundError:
    pass

async def main():
    for url in ("memory://", f"sqlite://{sys.argv[1]}/state.db", f"file://{sys.argv[1]}/state.json"):
        queue = intervalq.IntervalQueue("example", interval=0.01, store=url)
        async with queue.slot() as slot:
            print(slot.ticket)
        await queue.close()
        open_ledger_store(url)
    async with Tasks(f"sqlite://{sys.argv[1]}/state.db") as tasks:
        await tasks.insert("cars", {"paint": "red"})
        print([task.value for task in await tasks.tasks("cars")])
    try:
        open_store("kafka://host")
    except UnknownStore as error:
        print(error.known)

anyio.run(main)
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("packed") / "app.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", PROGRAM)
        folders = [(ROOT, "intervalq"), (ROOT / "stores", "intervalq_stores")]
        for name in PARTS:
            origin = Path(importlib.import_module(name).__file__ or "")
            if origin.name != "__init__.py":
                file.write(origin, origin.name)
            else:
                folders.append((origin.parent.parent, name))
        for base, name in folders:
            for path in sorted((base / name).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    file.write(path, path.relative_to(base))
    return archive


def test_its_own_stores_are_found(packed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(packed), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    *printed, known = done.stdout.splitlines()
    assert printed == ["1", "1", "1", "[{'paint': 'red'}]"]
    schemes = "memory file sqlite redis rediss unix redis+cluster rediss+cluster postgresql postgres nats tls"
    assert known == str(sorted(schemes.split()))

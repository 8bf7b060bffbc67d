"""Packaged intervalq: in one file with an application, and in an sdist with its tests."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import intervalq_stores
from intervalq._backends import _CLASSES, LEDGERS, QUEUES, TASKS

ROOT = Path(__file__).parent.parent
PARTS = ("anyio", "filelock", "idna", "platformdirs", "typing_extensions")
"""What anyio needs, too; the last one only before Python 3.13."""

PROGRAM = """
import sys
from importlib.metadata import PackageNotFoundError, version
import anyio
import intervalq
from intervalq.errors import UnknownStore
from intervalq.ledger.store import open_ledger_store
from intervalq.store import open_store
from intervalq.tasks import Tasks
from intervalq_stores.postgres._schema import statements
from intervalq_stores.redis import tasks
from intervalq_stores.redis._scripts import script

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
    async with Tasks(f"sqlite://{sys.argv[1]}/state.db") as cars:
        await cars.insert("cars", {"paint": "red"})
        print([task.value for task in await cars.tasks("cars")])
    for part in ("queues", "tasks", "ledgers"):
        print(statements(part).count("create or replace function") > 20)
    print(statements("schedules").count("create or replace function"))
    files = (("queues.lua",), ("ledgers.lua",), ("schedules.lua",), *tasks._PARTS.values())
    print(len({script(*parts).text for parts in files}))
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
        for name in filter(find_spec, PARTS):
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
    assert printed == ["1", "1", "1", "[{'paint': 'red'}]", "True", "True", "True", "3", "10"]
    schemes = "memory file sqlite redis rediss unix redis+cluster rediss+cluster postgresql postgres nats tls"
    schemes += " intervalq intervalqs"
    assert known == str(sorted(schemes.split()))


def test_pyinstaller_is_told_of_all_stores() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    [folder] = getattr(importlib.import_module(module), function)()
    hook = runpy.run_path(f"{folder}/hook-intervalq.py")
    names = {
        f"intervalq_stores.{each}.{part}"
        for part, classes in (("queues", QUEUES), ("tasks", TASKS), ("ledgers", LEDGERS))
        for each in _CLASSES[classes]
    }
    assert names - {*hook["hiddenimports"]} == set()
    installed = Path(intervalq_stores.__path__[0])  # the tests may run with the wheel
    base = installed.parent
    files = {str(path) for kind in ("sql", "lua") for path in installed.rglob(f"*.{kind}")}
    assert {source for source, _ in hook["datas"]} == files
    assert all(base / folder == Path(source).parent for source, folder in hook["datas"])


def test_an_sdist_has_all_that_its_test_command_reads() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    included = [ROOT / path.removeprefix("/") for path in targets["sdist"]["include"]]
    assert all(path.exists() for path in included)
    read = (
        "uv.lock",
        ".ci/run",
        "tests/conftest.py",
        "benchmarks/README.md",
        "docs/README.md",
        "SECURITY.md",
    )
    for path in (ROOT / name for name in read):
        assert any(path == each or each in path.parents for each in included), path


def test_links_of_the_readme_work_where_pypi_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its links to files become absolute; without a public address, only their text stays."""
    text = (ROOT / "README.md").read_text()
    hatchling = SimpleNamespace(MetadataHookInterface=object)  # only a build needs the real module
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", hatchling)
    made = runpy.run_path(str(ROOT / ".ci" / "hatch_build.py"))["readme"]
    assert "[Pacing][pacing]" in text
    alone = made(text, None)
    assert "| Pacing |" in alone
    assert not re.findall(r"\]\[|\]\(|^\[", alone, re.MULTILINE)
    linked = made(text, "https://example.org/intervalq")
    assert "[Pacing][pacing]" in linked
    targets = re.findall(r"^\[[^\]]+\]: (\S+)$", linked, re.MULTILINE)
    assert "https://example.org/intervalq/blob/main/docs/pacing.md#several-limits" in targets
    assert [
        target for target in targets if not target.startswith("https://example.org/intervalq/blob/main/")
    ] == []
    away = made("[a][x] [b][y]\n\n[x]: docs/a.md\n[y]: https://example.org\n", None)
    assert away == "a [b][y]\n\n[y]: https://example.org\n"

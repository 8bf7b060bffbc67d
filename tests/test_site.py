"""The documentation as a site: no warning, nothing loaded from elsewhere, all that is public named."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

import intervalq
import intervalq.errors
import intervalq.ledger
import intervalq.schedules
import intervalq.spark
import intervalq.tasks
import intervalq.testing
from intervalq.cli._app import Commands

ROOT = Path(__file__).parent.parent
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "use": "href"}
"""Elements that let a browser load something, and the attributes that say what."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """Collects what a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get("rel") != "canonical":
            self.found.append(given.get(LOADED[tag]) or "")


def foreign(page: str) -> list[str]:
    """What a page loads from other hosts."""
    return [found for found in Loads(page).found if re.match(r"(\w+:)?//", found)]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    assert foreign('<link href="a.css"><script src="https://cdn.example/a.js"></script><img src="//b">') == [
        "https://cdn.example/a.js",
        "//b",
    ]
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    assert not {page: found for page in pages if (found := foreign(page.read_text()))}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:\w+:)?//[^)]*|@import[^;]*", styles)


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    listed = {line.split(" ", 1)[0] for line in inventory.splitlines()}
    for module in (
        intervalq,
        intervalq.tasks,
        intervalq.schedules,
        intervalq.ledger,
        intervalq.spark,
        intervalq.testing,
    ):
        for name in module.__all__:
            places = {f"{module.__name__}.{name}", f"intervalq.errors.{name}", f"intervalq.tasks.{name}"}
            assert places & listed, f"{module.__name__}.{name}"
    errors = {name for name, thing in vars(intervalq.errors).items() if isinstance(thing, type)}
    assert {f"intervalq.errors.{name}" for name in errors if not name.startswith("_")} <= listed


def test_every_command_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "command-line" / "index.html").read_text()
    assert {f"intervalq-{name}" for name in Commands.known} <= {*re.findall(r'<h3 id="([\w-]+)"', page)}
    assert 'id="intervalq-tasks-insert"' in page
    assert "--lookahead" in page


def test_comments_for_tests_are_not_shown(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if "&lt;!--" in page.read_text()]


def test_links_are_fitted_to_the_site() -> None:
    hooks = runpy.run_path(str(ROOT / ".ci" / "site.py"))
    linked: Callable[[str, str, str, str | None], str] = hooks["linked"]
    page = "docs/tutorial/spark.md", "tutorial/spark.md"
    assert linked("[a](../README.md#how-to)", *page, None) == "[a](../contents.md#how-to)"
    assert linked("[a](../../SECURITY.md) [b](#b)", *page, None) == "[a](../security.md) [b](#b)"
    assert linked("[`x`](../../tests/soak.py)", *page, None) == "`x`"
    away = linked("[x](../../tests/soak.py)", *page, "https://h/r")
    assert away == "[x](https://h/r/blob/main/tests/soak.py)"
    assert linked("[a][b]\n\n[b]: docs/spark.md#install\n", "README.md", "index.md", None) == (
        "[a](spark.md#install)\n\n"
    )
    with pytest.raises(PluginError, match=r"there is no nowhere\.md"):
        linked("[a](nowhere.md)", *page, None)

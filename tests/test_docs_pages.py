"""The documentation's pages: links and tables are valid, and tables of options name the existing options."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intervalq import IntervalQueue
from intervalq.cli._app import Commands
from intervalq.spark import paced
from intervalq.tasks import Tasks

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "stores/README.md")),
    *(ROOT / name for name in ("tests/README.md", "benchmarks/README.md", "benchmarks/RESULTS.md")),
    *DOCS,
]
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def targets(text: str) -> list[str]:
    """The targets of a page's links, including those that are defined at its end."""
    reported = re.sub(r"`[^`\n]*`", "", prose(text))
    definitions = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", reported, re.MULTILINE))
    used = re.findall(r"\]\[([^\]]+)\]", reported)
    assert set(used) == set(definitions), "a reference without a definition, or the other way round"
    return [*re.findall(r"\]\(([^)\s]+)\)", reported), *definitions.values()]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> Iterator[str]:
    """The broken links of a page; web addresses are not checked."""
    for target in targets(text):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        there = page.parent / path if path else page
        if not there.exists() or (anchor and anchor not in anchors(text if not path else there.read_text())):
            yield target


def tables(text: str) -> Iterator[list[str]]:
    """The tables of a page, each as a list of its lines."""
    for found in re.findall(r"(?:^ *\|.*\n?)+", prose(text), re.MULTILINE):
        yield [line.strip() for line in found.splitlines()]


def fault(table: list[str]) -> str | None:
    """Why a renderer would not show these lines as one table; None: it would."""
    if len(table) < 3 or not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", table[1]):
        return f"no header and separator above: {table[0]}"
    wide = len(re.findall(r"(?<!\\)\|", table[0]))
    for line in table:
        if not line.endswith("|") or len(re.findall(r"(?<!\\)\|", line)) != wide:
            return f"not as many cells as the header: {line}"
    return None


@BY_PAGE
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    assert not [*broken(page, page.read_text())]


@BY_PAGE
def test_tables_are_whole(page: Path) -> None:
    assert not [reported for table in tables(page.read_text()) if (reported := fault(table))]


def test_faults_of_links_and_tables_are_found() -> None:
    page = ROOT / "docs" / "README.md"
    text = "[a](pacing.md) [b](nowhere.md) [c](pacing.md#nowhere) [d](#here)\n\n# Here\n"
    assert [*broken(page, text)] == ["nowhere.md", "pacing.md#nowhere"]
    sound = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n"
    assert [fault(table) for table in tables(sound)] == [None]
    torn = sound.replace("| 3", "\n| 3")
    assert [fault(table) is None for table in tables(torn)] == [True, False]
    assert [fault(table) is None for table in tables(sound.replace("| 4 |", "| 4 | 5 |"))] == [False]


@pytest.mark.parametrize("path", ["stores/README.md", "tests/README.md", "benchmarks/README.md"])
def test_files_that_are_named_exist(path: str) -> None:
    page = ROOT / path
    for named in re.findall(r"`((?:test_|faults/|model/|stores/|fuzz/)[\w/*]*(?:\.py|/))`", page.read_text()):
        assert list(page.parent.glob(named)), named


def test_the_map_of_the_code_is_that_of_the_code() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:intervalq|stores|tests|benchmarks)/[\w/.]*)`", text)
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / path).exists()]
    classes = re.findall(
        r"`(\w+)`", " ".join(re.findall(r"^\| ([^|]*)", glossary_of_classes(text), re.MULTILINE))
    )
    code = "\n".join(
        path.read_text() for part in ("intervalq", "stores") for path in sorted((ROOT / part).rglob("*.py"))
    )
    defined = set(re.findall(r"^class (\w+)", code, re.MULTILINE))
    assert len(classes) > 20
    assert set(classes) <= defined


def glossary_of_classes(text: str) -> str:
    return text.partition("## Glossary: classes")[2].partition("\n## ")[0]


def first_cells(page: str, header: str) -> list[str]:
    """The names in the first column of the table whose first header cell is this."""
    [table] = [
        table for table in tables((ROOT / "docs" / page).read_text()) if table[0].startswith(f"| {header} |")
    ]
    return [name for line in table[2:] for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]


@pytest.mark.parametrize(
    ("page", "header", "function", "elsewhere"),
    [
        ("pacing.md", "option of `IntervalQueue`", IntervalQueue, {"name"}),
        ("tasks.md", "option of `insert` and `new`", Tasks.new, {"self", "queue", "value"}),
        ("tasks.md", "option of `@tasks.worker`", Tasks.worker, {"self", "queues"}),
        ("tasks.md", "option of `run`", Tasks.run, {"self"}),
        ("spark.md", "option of `paced`", paced, {"function", "schema"}),
    ],
)
def test_the_tables_of_options_name_all_of_them(
    page: str, header: str, function: Callable[..., Any], elsewhere: set[str]
) -> None:
    assert sorted(first_cells(page, header)) == sorted({*inspect.signature(function).parameters} - elsewhere)


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    reported = set(re.findall(r"[a-z-]+", " ".join(re.findall(r"`[^`\n]+`", text))))
    assert set(Commands.known) <= reported


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {index.parent / target for target in targets(index.read_text())}
    assert {*DOCS} - {index} <= listed


def test_the_readme_is_short_and_shows_an_example_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 130
    assert lines.index("```python") < 40


def test_links_of_the_readme_are_in_one_place() -> None:
    """`.ci/hatch_build.py` rewrites these links for PyPI: see `test_packed.py`."""
    text = (ROOT / "README.md").read_text()
    definitions = re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    assert sorted(targets(text)) == sorted(definitions), "links stand at the end of the page"


def test_the_simulation_has_run_as_often_as_is_said() -> None:
    text = (ROOT / "docs" / "explanation" / "how-it-was-tried.md").read_text()
    [written] = re.findall(r"more than ([\d,]+) schedules", text)
    log = (ROOT / "tests" / "simulation_campaign.jsonl").read_text().splitlines()
    assert sum(json.loads(piece)["schedules"] for piece in log) > int(written.replace(",", ""))

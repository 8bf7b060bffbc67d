"""What the documents show is run, and prints what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
STORES = (ROOT / "stores" / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(rf"(<!-- set-up[^\n]*\n)?```{language}\n(.*?)```", text, re.DOTALL)
    return [code for setup, code in found if not setup]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "INTERVALQ_STORE": f"sqlite://{tmp_path}/state.db"}


@pytest.mark.parametrize(
    ("text", "on_spark"),
    [(README, False), (README, True), (SECURITY, False)],
    ids=["readme", "spark", "security"],
)
def test_the_examples_print_what_they_say(
    environment: dict[str, str], tmp_path: Path, text: str, on_spark: bool
) -> None:
    code = "\n".join(block for block in blocks(text, "python") if ("pyspark" in block) == on_spark)
    expected = " ".join(re.findall(r"# prints: (.*)", code)).split()
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or on_spark  # whose Java says how it begins
    assert done.stdout.split() == expected


@pytest.mark.parametrize("commands", blocks(README, "sh"))
def test_the_commands_of_the_readme_run(commands: str, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "results.jsonl" in commands:
        assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 8
    if "tasks list" in commands:
        assert '"color":"red"' in done.stdout.replace(": ", ":")


@pytest.mark.parametrize("path", ["README.md", "stores/README.md", "tests/README.md", "benchmarks/README.md"])
def test_links_and_files_that_are_named_exist(path: str) -> None:
    page = ROOT / path
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)[)#]", text):
        assert (page.parent / link).exists(), link
    for named in re.findall(r"`((?:test_|faults/|model/|stores/|fuzz/)[\w/*]*(?:\.py|/))`", text):
        assert list(page.parent.glob(named)), named


def test_the_set_up_commands_are_those_of_the_checks() -> None:
    setups = re.findall(r"<!-- set-up[^\n]*\n```sh\n(.*?)\n```", README, re.DOTALL)
    assert len(setups) == 2
    assert "run --frozen --group test pytest" in setups[1]
    assert "run pytest" in (ROOT / ".ci" / "run").read_text()


def test_the_example_store_is_short_and_passes_the_suite(tmp_path: Path, environment: dict[str, str]) -> None:
    """As a third party would: a package with an entry point, and the suite over it."""
    code, suite, *_ = blocks(STORES, "python")
    body = code[code.index("class ") :]
    assert len([line for line in body.splitlines() if line.strip()]) < 30
    (tmp_path / "my_package.py").write_text(code)
    (tmp_path / "test_my_store.py").write_text(suite)
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    [entry] = re.findall(r'\[project\.entry-points\."(.*?)"\]\n(\w+) = "(.*?)"', STORES)
    (info / "entry_points.txt").write_text(f"[{entry[0]}]\n{entry[1]} = {entry[2]}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout or "5 passed, 1 skipped" in done.stdout

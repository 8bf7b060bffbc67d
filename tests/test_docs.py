"""The examples in the documentation run, and print what they say."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import PAGES, blocks
from intervalq.spark import java_home
from spark import archive

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
STORES = (ROOT / "stores" / "README.md").read_text()

JOINED = {"docs/tutorial/spark.md": "docs/spark.md"}
"""Pages whose examples are run behind those of another, so that Spark starts once."""

SERVERS = {"nats://127.0.0.1": "nats_url", "redis://127.0.0.1": "redis_url"}
"""Servers that examples name, and the fixtures that have them."""


def with_servers(code: str, request: pytest.FixtureRequest) -> str:
    for url, fixture in SERVERS.items():
        if url in code:
            code = code.replace(url, request.getfixturevalue(fixture))
    return code


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "INTERVALQ_STORE": f"sqlite://{tmp_path}/state.db"}


def java_options(request: pytest.FixtureRequest) -> str:
    """Options of a Java that starts quickly."""
    java_home()
    cache: pytest.Cache | None = getattr(request.config, "cache", None)  # it may be switched off
    return archive.options(None if cache is None else cache.mkdir("spark"))


@pytest.mark.timeout(900)  # Spark starts, and a dozen of its Python workers
@pytest.mark.parametrize(
    "page", [page for page, text in PAGES.items() if blocks(text, "python") and page not in JOINED]
)
def test_the_examples_print_what_they_say(
    page: str, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The blocks of a page form one program, as when a reader types them in."""
    pages = [page, *[other for other, first in JOINED.items() if first == page]]
    code = "\n".join(code for each in pages for code in blocks(PAGES[each], "python"))
    expected = " ".join(re.findall(r"# prints: (.*)", code)).split()
    assert expected, "an example has to print something, so that it is seen to work"
    if "pyspark" in code:
        java = f"--driver-java-options '{java_options(request)}'"
        environment["PYSPARK_SUBMIT_ARGS"] = f"{java} pyspark-shell"
    script = tmp_path / "example.py"
    script.write_text(with_servers(code, request))
    if re.search(r"^(async for|await) ", code, re.MULTILINE):  # cells of a notebook
        flag, name = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, script.name
        cells = f"import asyncio\ncells = compile(open({name!r}).read(), {name!r}, 'exec', {flag})\n"
        script = tmp_path / "notebook.py"
        script.write_text(f"{cells}asyncio.run(eval(cells))\n")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A queue warns that this machine is busy: late timers, slow answers of the store. A failed task is logged
    messages = [line for line in done.stderr.splitlines() if not line.startswith(("queue '", "task "))]
    assert not messages or "pyspark" in code  # Java writes messages at its start
    assert done.stdout.split() == expected


@pytest.mark.parametrize("page", PAGES)
def test_an_example_needs_no_earlier_one(page: str) -> None:
    """A reader copies one block."""
    for code in blocks(PAGES[page], "python"):
        used, bound = set[str](), set(dir(builtins))
        for node in ast.walk(ast.parse(code)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    used.add(name)
                case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                    bound.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    bound.add(name)
                case ast.alias(name=name, asname=other):
                    bound.add(other or name.partition(".")[0])
                case _:
                    pass
        assert used <= bound, f"{used - bound} in\n{code}"


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page, text in PAGES.items() for number in range(len(blocks(text, "sh")))],
)
def test_the_commands_run(
    page: str, number: int, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    commands = with_servers(blocks(PAGES[page], "sh")[number], request)
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


def test_what_is_not_run_compiles_and_says_why() -> None:
    """Airflow and Prefect are too large to be installed, and so is the code that a reader moves away from."""
    unrun = [(page, code) for page, text in PAGES.items() for code in blocks(text, "python", "compiled only")]
    assert {page for page, _ in unrun} == {"docs/how-to/airflow-prefect.md", "docs/how-to/moving.md"}
    for page, code in unrun:
        compile(code, page, "exec")


def test_every_kind_of_example_is_run_by_some_test() -> None:
    """A block in a language that no test runs could become wrong unnoticed; plain text is `text`."""
    for page, text in PAGES.items():
        if page != "SECURITY.md":  # whose blocks are configurations, tested by test_least_rights.py
            assert set(re.findall(r"^```(\S*)$", text, re.MULTILINE)) <= {"", "python", "sh", "text"}, page
            opened = re.findall(r"^```.*$", text, re.MULTILINE)[::2]
            assert "```" not in opened, page
    assert sum(len(blocks(text, "python")) for text in PAGES.values()) >= 10
    assert sum(len(blocks(text, "sh")) for text in PAGES.values()) >= 3


def test_the_set_up_commands_are_those_of_the_checks() -> None:
    setups = re.findall(r"<!-- set-up[^\n]*\n```sh\n(.*?)\n```", README, re.DOTALL)
    assert len(setups) == 2
    assert "run --frozen --group test pytest" in setups[1]
    assert "run pytest" in (ROOT / ".ci" / "run").read_text()


def test_the_example_store_is_short_and_passes_the_suite(tmp_path: Path, environment: dict[str, str]) -> None:
    """The example is a third party's package, with an entry point and a test that uses the suite."""
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
    assert "9 passed" in done.stdout or "8 passed, 1 skipped" in done.stdout

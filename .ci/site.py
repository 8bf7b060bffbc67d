"""Hooks of mkdocs.yml: pages from elsewhere, links for the site, pictures, and the list of commands."""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from intervalq.cli._app import app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent

MOVED: Final = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "docs/reference/README.md": "reference/index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "stores/README.md": "writing-a-store.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/RESULTS.md": "benchmark-results.md",
    "tests/README.md": "tests.md",
}
"""Pages that have another place on the site than their own below docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    for path, there in MOVED.items():
        old = files.get_file_from_path(path.removeprefix("docs/")) if path.startswith("docs/") else None
        if old is not None:
            files.remove(old)
        files.append(File.generated(config, there, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the commands, and fit links to the site."""
    del files
    here = page.file.src_uri
    origin = next((path for path, there in MOVED.items() if there == here), f"docs/{here}")
    return linked(markdown.replace("<!-- commands -->", commands()), origin, here, config.repo_url)


def linked(markdown: str, origin: str, here: str, repository: str | None) -> str:
    """A page without comments for tests, and with links for the site.

    In the repository they are relative to `origin`, and on the site to the page `here`. Files that the site
    doesn't have are linked in the repository if that has an address, and else only named.
    """
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    definitions = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", "".join(parts[::2]), re.MULTILINE))

    def target(found: re.Match[str]) -> str:
        path, hash_, anchor = found[2].partition("#")
        if "://" in path or not path:
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if not (ROOT / there).exists():
            raise PluginError(f"{origin}: there is no {path}")
        if there in MOVED or there.startswith("docs/"):
            site = MOVED.get(there, there.removeprefix("docs/"))
            return f"{found[1]}({posixpath.relpath(site, posixpath.dirname(here) or '.')}{hash_}{anchor})"
        if repository is not None:
            return f"{found[1]}({repository.rstrip('/')}/blob/main/{there}{hash_}{anchor})"
        return found[1][1:-1]

    for place in range(0, len(parts), 2):  # between blocks of code
        text = re.sub(r"^<!--.*?-->\n", "", parts[place], flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"^\[[^\]]+\]: \S+(?:\n|\Z)", "", text, flags=re.MULTILINE)
        if definitions:
            text = re.sub(r"\[([^\]]+)\]\[([^\]]+)\]", lambda at: f"[{at[1]}]({definitions[at[2]]})", text)
        parts[place] = re.sub(r"(!?\[(?:[^\[\]]|`[^`]*`)*\])\(([^)\s]+)\)", target, text)
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put pictures into their pages, so that they have the colours of the theme."""
    del page, config, files

    def picture(found: re.Match[str]) -> str:
        return re.sub(r"\s*\n\s*", " ", (ROOT / "docs" / "pictures" / found[1]).read_text(encoding="utf-8"))

    return re.sub(r'<img [^>]*src="[^"]*pictures/([\w-]+\.svg)"[^>]*>', picture, html)


def commands() -> str:
    """The page of all commands."""
    top = click.Context(app, info_name="intervalq")
    return "\n\n".join(described(app, top, 2))


def described(command: click.Command, context: click.Context, level: int) -> list[str]:
    """A command's section, and those of its own commands."""
    sections: list[str] = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            if not child.hidden:
                sections += described(child, click.Context(child, context, name), min(level + 1, 3))
    heading = f"{'#' * level} {context.command_path}"
    usage = f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    rows = [f"| `{cell(names)}` | {cell(text)} |" for names, text in records]
    table = "\n".join(["| option | meaning |", "|---|---|", *rows])
    said = inspect.cleandoc(command.help or "").replace("\b\n", "")
    examples = inspect.cleandoc((command.epilog or "").partition("Examples:\n")[2])
    shown = [f"```sh\n{examples}\n```"] if examples else []
    return [heading, said, usage, table, *shown, *sections]


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")

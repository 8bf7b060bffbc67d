"""Hatchling's hook for the README in the package's metadata, which PyPI shows.

PyPI has no other file of the repository, so links to files become absolute, by `[project.urls] Repository`.
While the project has no public address, only their text stays.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def readme(text: str, repository: str | None) -> str:
    """The README with links that work outside of the repository."""
    definitions = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    away = {name: path for name, path in definitions.items() if "://" in path}
    if repository is not None:
        away = {
            name: path if "://" in path else f"{repository}/blob/main/{path}"
            for name, path in definitions.items()
        }
    body = re.sub(r"^\[[^\]]+\]: \S+\n", "", text, flags=re.MULTILINE)
    body = re.sub(r"\[([^\]]+)\]\[([^\]]+)\]", lambda link: link[0] if link[2] in away else link[1], body)
    return body + "".join(f"[{name}]: {path}\n" for name, path in away.items())


class Readme(MetadataHookInterface):
    """Sets the project's `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        urls = metadata.get("urls", {})
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, urls.get("Repository"))}

"""Where PyInstaller finds the hook of this package: stores are imported by name, which it can't see."""

from __future__ import annotations


def hook_folders() -> list[str]:
    """The folders with hooks. PyInstaller calls this: `pyproject.toml` names it as an entry point."""
    return list(__path__)

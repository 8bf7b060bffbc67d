"""The examples of the documentation: the blocks of code on its pages, and whether a test runs them.

`python tests/examples.py FOLDER` writes those that are typed into a folder, for the type checkers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

PAGES: Final = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))
}

UNTYPED: Final = {
    "docs/how-to/django.md": "Django has no types of its own",
    "docs/how-to/celery.md": "Celery has no types of its own",
    "docs/how-to/notebooks.md": "its cells await outside of functions",
    "docs/how-to/llm-budgets.md 0": "OpenAI's client takes those of httpx, too, which its types don't say",
}
"""Pages of the tutorial and the how-to guides, or blocks of them, that type checkers don't see, and why."""


def blocks(text: str, language: str, mark: str = "") -> list[str]:
    """The blocks of a language on a page that have no comment above, or one that begins with this mark.

    `set-up` is run only by hand, or elsewhere; `compiled only` needs what is too large to be installed.
    """
    found = re.findall(rf"(?:<!-- ([a-z -]+)[^\n]*-->\n)?```{language}\n(.*?)```", text, re.DOTALL)
    return [code for said, code in found if said.startswith(mark) and bool(said) == bool(mark)]


def write(folder: Path) -> None:
    """Write the typed examples, one file each, since each block of a page is complete by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for page, text in PAGES.items():
        if not page.startswith(("docs/tutorial/", "docs/how-to/")):
            continue
        for number, code in enumerate(blocks(text, "python")):
            if not UNTYPED.keys() & {page, f"{page} {number}"}:
                name = re.sub(r"\W", "_", page.removeprefix("docs/").removesuffix(".md"))
                (folder / f"{name}_{number}.py").write_text(f'"""{page}"""\n# pyright: strict\n\n{code}')
    store = blocks((ROOT / "stores" / "README.md").read_text(), "python")[0]
    (folder / "a_store.py").write_text(f'"""stores/README.md"""\n# pyright: strict\n\n{store}')


if __name__ == "__main__":
    write(Path(sys.argv[1]))

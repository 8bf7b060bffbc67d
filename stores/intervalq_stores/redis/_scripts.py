"""The files of Lua, as scripts for the server."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files


class Script:
    """A script and the digest by which a server finds it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def script(*names: str) -> Script:
    """The script that consists of these files, in this order."""
    folder = files("intervalq_stores.redis")
    return Script("".join(folder.joinpath(name).read_text("utf-8") for name in names))

"""The types that the parts of the client exchange, and their protocols; this module needs no driver."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

# Answers are `Any`, because only the sender of a command knows their types.

Address: TypeAlias = tuple[str, int] | None
"""Host and port of a node; None: the one of the URL."""

Trip: TypeAlias = tuple[int, int]
"""When a command was sent, and when its answer arrived: see `Answer.trip`."""


class Caller(Protocol):
    """Something that commands can be sent by."""

    async def call(self, *command: str, node: Address = None) -> Any:  # noqa: ANN401
        """Do a command that isn't about one queue, on the given node or any."""
        ...

"""One call for all who ask while the one before is under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Joined(Generic[T]):
    """Asks once for what several callers want, so that thousands of them cost a few calls."""

    def __init__(self, ask: Callable[[Sequence[str]], Awaitable[T]]) -> None:
        """`ask` is called with the names that all callers of a batch gave, each once."""
        self._ask = ask
        self._asking = anyio.Lock()
        self._next: _Batch[T] = _Batch()

    async def ask(self, names: Iterable[str]) -> T:
        """The answer for these names, and for others; or the error of the call."""
        batch = self._next
        batch.names.update(dict.fromkeys(names))
        async with self._asking:
            if batch is self._next:
                self._next = _Batch()
            if not batch.answers and batch.error is None:  # unless an earlier caller has done it
                try:
                    batch.answers.append(await self._ask(list(batch.names)))
                except Exception as error:  # noqa: BLE001 - each caller raises it
                    batch.error = error
        if batch.error is not None:
            raise batch.error.with_traceback(None)
        return batch.answers[0]


class _Batch(Generic[T]):
    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.answers: list[T] = []
        self.error: Exception | None = None

"""Random commands for a store of ledgers: few rows, processes that die and return, instants that matter."""

from __future__ import annotations

from random import Random
from typing import Final

from intervalq.ledger.rules import (
    Beat,
    Cancel,
    Claim,
    Command,
    Drop,
    Ended,
    Expire,
    Forget,
    Leave,
    MemoryBook,
    Record,
    Release,
    Shown,
    Start,
)

_KEYS: Final = ("a", "b", "B", "a key: ü|{}", "\U0001f511", "b'\\\"")
_VALUES: Final = ("null", "", '{"a": [1, "ü\\u0000"]}', "\U0001f511", "x" * 3_000, 'a\nb\t"c":{d}|1:2')
_SESSIONS: Final = ("s", "t", "é:3")
_SHOWN: Final[tuple[Shown, ...]] = ("claimed", "started", "unknown", "free", "done", "failed")
_SPANS: Final = (0, 1, 2, 10, 50)


class LedgerCommandSource:
    """Generates commands and instants from one seed, using the model to find what matters.

    The clock doesn't go back, as a store may notice late that a session has lapsed.
    """

    def __init__(self, seed: int, *, start: int = 1_000_000_000_000_000) -> None:
        self.random = Random(seed)  # noqa: S311 - repeatable on purpose
        self.now = start

    def next(self, model: MemoryBook) -> tuple[Command, int]:
        """A command, and the store's clock when it arrives."""
        dice = self.random
        instants = [*model.sessions.values(), *([model.meta.expires or 0] if model.meta else [])]
        instants = [at for at in instants if at >= self.now]
        if instants and dice.random() < 0.3:  # at the very end of a session or of the ledger, or just before
            self.now = max(self.now, dice.choice(instants) - dice.randint(0, 1))
        else:
            self.now += dice.choice(_SPANS)
        return self._command(), self.now

    def _command(self) -> Command:
        dice = self.random
        session, expiry = dice.choice(_SESSIONS), dice.choice((1, 5, 20, 100))
        some = self._keys()
        choice = dice.random()
        if choice < 0.35:
            return Claim(session, expiry, some, started=dice.random() < 0.3, again=dice.random() < 0.5)
        if choice < 0.5:
            return Start(session, expiry, some)
        if choice < 0.65:
            ends = tuple(Ended(key, dice.choice(_VALUES), dice.random() < 0.3) for key in some)
            return Record(session, expiry, ends)
        if choice < 0.73:
            return Release(session, some)
        if choice < 0.82:
            return Forget(some, tuple(dice.sample(_SHOWN, dice.randint(0, len(_SHOWN)))))
        others: list[Command] = [
            Beat(session, expiry),
            Leave(session),
            Cancel(dice.random() < 0.4),
            Expire(dice.choice((None, None, self.now - 1, self.now, self.now + 30))),
            Drop(),
        ]
        return dice.choices(others, (4, 4, 3, 3, 1))[0]

    def _keys(self) -> tuple[str, ...]:
        """Some keys; one may occur twice."""
        return tuple(self.random.choices(_KEYS, k=self.random.randint(0, 4)))

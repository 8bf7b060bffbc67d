"""A run that a test controls itself: shards that call the service, and the verdict on what they did."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import servers
from faults.called import Called, now
from faults.shards import SCRIPT, Shard, Shards, Work, until_calls
from faults.verdict import Log, Loss, Step, Verdict, judge


class Trial:
    """A run, from `with` to `verdict()`. As a context it leaves nothing behind."""

    def __init__(
        self,
        url: str,
        *,
        interval: float = 0.1,
        callers: int = 6,
        script: Path = SCRIPT,
        more: Sequence[str] = (),
    ) -> None:
        self._folder = servers.Folder("called")
        self.called = Called(self._folder.path)
        self.interval = round(interval * 1e6)
        self.shards = Shards(
            Work(
                url=url,
                service=self.called.path,
                queue=f"trial-{secrets.token_hex(4)}",
                interval=interval,
                callers=callers,
                script=script,
                more=tuple(more),
            )
        )
        self.losses: list[Loss] = []
        self.steps: list[Step] = []
        self.last_fault = 0

    def __enter__(self) -> Self:
        self.called.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shards.bury()
        self.called.close()
        self._folder.remove()

    def go_on(self, least: int = 2, of: Sequence[Shard] | None = None) -> None:
        """Wait until shards (all that are alive) have begun some more jobs; it's a fault if they don't."""
        if not until_calls(self.called, self.shards, after=now(), least=least, of=of):
            self.shards.wrong.append(f"liveness: not every shard began {least} jobs within a minute")

    def verdict(self, again: int = 0) -> Verdict:
        """End the shards, and judge what they did; `again` jobs must have begun after the last fault."""
        self.shards.end()
        log = Log(
            interval=self.interval,
            starts=self.called.taken(),
            live=self.shards.lived,
            reports=self.shards.reports,
            stops=self.shards.stops,
            losses=self.losses,
            steps=[*self.called.steps, *self.steps],
            last_fault=self.last_fault,
            again=again,
        )
        verdict = judge(log)
        verdict.broken.extend(self.shards.wrong)
        return verdict

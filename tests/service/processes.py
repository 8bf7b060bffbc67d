"""A service as a process of its own, which can be killed and started again at the same address."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

QUIET: Final = str(Path(__file__).with_name("quiet_service.py"))
"""For suites, which have clocks of their own."""


class Served:
    """`intervalq serve` over a store."""

    def __init__(self, store: str, *options: str, program: str | None = None) -> None:
        """`program` is run instead of intervalq's own."""
        self._store, self._options = store, options
        self._program = ["-m", "intervalq"] if program is None else [program]
        self.process: subprocess.Popen[str]
        self.http: str | None = None
        self._host = "127.0.0.1:0"
        self.start()

    @property
    def url(self) -> str:
        """Its URL as a store."""
        return f"intervalq://{self._host}"

    @property
    def address(self) -> str:
        """Where its gRPC service listens."""
        return self._host

    def start(self) -> None:
        """Start it, at the address that it had before."""
        command = [sys.executable, *self._program, "serve", "--store", self._store, "--grpc", self._host]
        command += ["--json", "--grace", "1s", *self._options]
        if "--http" not in self._options:
            command += ["--http", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the service doesn't start"
        said: dict[str, Any] = json.loads(line)
        self._host, self.http = said["grpc"], said["http"]

    def kill(self) -> None:
        """Kill it, as `kill -9`."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

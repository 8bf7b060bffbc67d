"""A service that shows no sign of life by itself: it would end sessions that suites begin long ago."""

from __future__ import annotations

import sys

from intervalq.cli._app import run_app
from intervalq.service._entroq import waiting

waiting._BEAT = 100_000.0  # type: ignore[misc]
sys.exit(run_app(sys.argv[1:]))

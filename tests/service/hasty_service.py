"""A service that soon loses patience with clients that send or take nothing."""

from __future__ import annotations

import sys

from intervalq.cli._app import run_app
from intervalq.service import _connections, _serve

_connections._LOOK = 0.1  # type: ignore[misc]
_serve._KEEPALIVE = 1_000  # type: ignore[misc]
sys.exit(run_app(sys.argv[1:]))

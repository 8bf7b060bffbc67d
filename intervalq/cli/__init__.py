"""The command line `intervalq`; needs the extra `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, and exit with its code: the console entry point."""
    try:
        import click  # noqa: PLC0415 - an extra
        import rich  # noqa: PLC0415
    except ImportError:
        sys.stderr.write("intervalq: the command line needs an optional part: pip install 'intervalq[cli]'\n")
        sys.exit(2)
    del click, rich
    from intervalq.cli._app import run_app  # noqa: PLC0415 - needs both

    sys.exit(run_app())

"""Lets spark-submit start a pipeline: this file with SPEC.toml does `intervalq pipeline run SPEC.toml`."""

from __future__ import annotations

import sys

from intervalq.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["pipeline", "run"]
    main()

"""Plants a bug and simulates, to check that it is found: `python tests/simulate_bug.py NAME [OPTIONS]`.

The options are those of `python tests/simulation`; without a name, the bugs are listed.
"""

import sys
from functools import partial

from planted.bugs import BUGS, planted
from simulation.__main__ import main

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in BUGS:
        sys.exit("\n".join(["usage: simulate_bug.py NAME [OPTIONS]; the names:", *BUGS]))
    sys.exit(main(sys.argv[2:], partial(planted, sys.argv[1])))

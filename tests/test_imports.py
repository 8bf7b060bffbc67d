"""What a program pays for at its start: the modules that `import intervalq` loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

OWN: Final = 80
"""The most modules of its own: those for queues. Stores, tasks and all else are imported when used."""

LOADED: Final = """
import sys, asyncio, anyio.from_thread, anyio.to_thread
before = {*sys.modules}
import intervalq
print(*{*sys.modules} - before)
"""


def test_a_queue_s_import_loads_nothing_that_few_programs_need() -> None:
    shown = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    loaded = shown.split()
    own = [name for name in loaded if name.partition(".")[0] == "intervalq"]
    assert "intervalq.rules" in own
    assert len(own) <= OWN
    others = {name.partition(".")[0] for name in loaded} - {"intervalq"}
    assert not others & {"intervalq_stores", "email", "platform", "sqlite3", "http", "json", "trio"}
    assert not others - sys.stdlib_module_names

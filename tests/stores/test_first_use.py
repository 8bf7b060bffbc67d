"""A driver is imported by the first command, in a thread, because it would block the event loop for long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from servers import free_port

SCRIPT = """
import sys, threading
import anyio
from intervalq.errors import StoreUnavailable
from intervalq.rules import Inspect
from intervalq.store import open_store

driver, url = sys.argv[1:]
main, where = threading.main_thread(), []

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == driver:
            where.append(threading.current_thread())

async def use():
    store = open_store(url)
    assert driver not in sys.modules, "imported when it was opened"
    sys.meta_path.insert(0, Watch)
    try:
        await store.apply("q", Inspect())
    except StoreUnavailable:  # nobody is there
        pass
    assert len(where) > 5, "imported by the first command"
    assert main not in where[:5], "imported by the event loop"

anyio.run(use)
"""


@pytest.mark.parametrize(("driver", "scheme"), [("psycopg", "postgresql"), ("nats", "nats")])
def test_the_driver_is_imported_by_the_first_command_in_a_thread(driver: str, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, driver, url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

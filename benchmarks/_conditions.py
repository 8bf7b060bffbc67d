"""What a machine does to the processes of a run: nothing, busy neighbours, a CPU quota.

Each condition begins when the processes are ready, and ends with the run, also when this process is interrupted or
killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _helper import helper
from _run import HERE, Around, undisturbed

SHARE = 0.3
PERIOD = 0.1
"""Under a quota: the share of each period that a process may run, and the period in seconds."""

_CGROUPS = Path("/sys/fs/cgroup")
_NUMBERS = itertools.count()
"""Numbers for the folders, because a removed one may exist for another moment."""

# It ends with its standard input, which is closed when the process that started it ends.
_LOOP = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True: pass
"""

# Folders can be removed once no process is left in them.
_REMOVE = """
cat >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rmdir "$@" 2>/dev/null
    left=
    for folder; do [ ! -d "$folder" ] || left=some; done
    [ "$left" ] || exit
    sleep 0.5
done
"""


@dataclass(frozen=True)
class Condition:
    """A condition."""

    name: str
    means: str
    """Its description for people."""
    around: Around


@dataclass(frozen=True)
class Cgroup:
    """Where folders with a CPU limit can be created, and what to write into one."""

    version: int
    folder: Path

    @property
    def limit(self) -> list[tuple[str, str]]:
        """File names and their contents, in the order in which they are written."""
        period = round(PERIOD * 1e6)
        quota = round(SHARE * period)
        if self.version == 1:
            return [("cpu.cfs_period_us", str(period)), ("cpu.cfs_quota_us", str(quota))]
        return [("cpu.max", f"{quota} {period}")]

    def make(self, name: str) -> Path:
        """A new folder with the limit.

        Raises:
            OSError: it can't be made here; then there is none.
        """
        made = self.folder / name
        made.mkdir()
        try:
            for file, text in self.limit:
                if not (made / file).exists():
                    raise FileNotFoundError(f"{made / file} does not exist: the cpu controller is not there")
                (made / file).write_text(text)
        except OSError:
            made.rmdir()
            raise
        return made


def conditions(names: Sequence[str], quota: str | None) -> tuple[list[Condition], dict[str, str]]:
    """The conditions of these names, and why others are missing.

    `quota`: the only kind of quota to use; None: both.
    """
    loops = 2 * _processors()
    found = {
        "quiet": Condition("quiet", "nothing else runs", undisturbed),
        "pressed": Condition("pressed", f"{loops} busy loops, two per processor", partial(_pressed, loops)),
    }
    missing: dict[str, str] = {}
    if quota == "stop":
        missing["quota"] = "left out by --quota stop"
    elif isinstance(cgroup := find_cgroup() if "quota" in names else "not asked for", Cgroup):
        means = f"cgroup v{cgroup.version}: {SHARE:.0%} of a processor for each worker process"
        found["quota"] = Condition("quota", means, partial(_limited, cgroup))
    else:
        missing["quota"] = cgroup
    if quota == "cgroup":
        missing["stopped"] = "left out by --quota cgroup"
    else:
        means = f"SIGSTOP and SIGCONT: each worker process runs {SHARE * PERIOD * 1e3:g} ms of every {PERIOD * 1e3:g}"
        found["stopped"] = Condition("stopped", means, _stopped)
    return (
        [found[name] for name in NAMES if name in names and name in found],
        {name: why for name, why in missing.items() if name in names},
    )


NAMES = ("quiet", "pressed", "quota", "stopped")


def find_cgroup(root: Path = _CGROUPS) -> Cgroup | str:
    """Where a CPU limit can be made on this machine, or why it can't."""
    why = f"there is no cpu controller under {root}"
    for cgroup in (Cgroup(1, root / "cpu"), Cgroup(2, root)):
        if not (cgroup.folder / "cgroup.procs").exists():
            continue
        try:
            cgroup.make(f"intervalq-busy-{os.getpid()}").rmdir()
        except OSError as error:
            why = f"no cgroup can be made: {error}"
        else:
            return cgroup
    return why


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pressed() -> contextlib.AbstractContextManager[None]:
    """Two busy loops per processor, while the context is open."""
    return _pressed(2 * _processors(), ())


@contextlib.contextmanager
def _pressed(loops: int, _: Sequence[int]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _number in range(loops):
            stack.enter_context(helper(sys.executable, "-c", _LOOP))
        yield


@contextlib.contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    words = [str(word) for word in (SHARE, PERIOD, *pids)]
    with helper(sys.executable, str(HERE / "_stopper.py"), *words):
        yield


@contextlib.contextmanager
def _limited(cgroup: Cgroup, pids: Sequence[int]) -> Iterator[None]:
    names = [f"intervalq-busy-{os.getpid()}-{next(_NUMBERS)}" for _ in pids]
    folders = [str(cgroup.folder / name) for name in names]
    with helper("sh", "-c", _REMOVE, "sh", *folders):
        for name, pid in zip(names, pids, strict=True):
            (cgroup.make(name) / "cgroup.procs").write_text(str(pid))
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(OSError):  # it has ended
                    (cgroup.folder / "cgroup.procs").write_text(str(pid))

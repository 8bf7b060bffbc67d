"""Tables of other formats, and file systems: what can be tried without Delta's and Iceberg's jars."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from intervalq.errors import InvalidOption
from intervalq.ledger._files import ArrowFiles, Files, OwnFiles
from intervalq.pipeline import read_spec, run
from intervalq.spark import remaining
from intervalq.spark._runtime.hadoop import files_of
from spark.pipelines import Small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["own", "arrow", "hadoop"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> tuple[Files, str]:
    """A file system, and a folder in it that isn't there yet."""
    if request.param == "own":
        return OwnFiles(), f"{tmp_path}/a"
    if request.param == "arrow":
        from pyarrow import fs

        return ArrowFiles(fs.LocalFileSystem()), f"{tmp_path}/a"
    spark.conf.set(f"fs.viewfs.mounttable.{tmp_path.name}.link./in", f"file://{tmp_path}")
    return files_of(f"viewfs://{tmp_path.name}/in/a/", spark)


def test_file_systems_do_the_same(files: tuple[Files, str]) -> None:
    system, folder = files
    assert (system.names(folder), system.has(folder)) == ([], False)
    with pytest.raises(FileNotFoundError):
        system.read(f"{folder}/b")
    for path in (f"{folder}/b", folder):
        system.remove(path)
        system.remove_all(path)
    data = bytes(range(256)) * 1000
    system.write(f"{folder}/b/c", b"")
    system.write(f"{folder}/b/c", data)
    assert system.read(f"{folder}/b/c") == data
    assert (system.names(folder), system.names(f"{folder}/b"), system.has(f"{folder}/b/c")) == (
        ["b"], ["c"], True,
    )  # fmt: skip
    system.write(f"{folder}/b/d", b"old")
    system.replace(f"{folder}/b/c", f"{folder}/b/d")
    assert (system.names(f"{folder}/b"), system.read(f"{folder}/b/d")) == (["d"], data)
    with suppress(OSError):  # or nothing happens
        system.remove(f"{folder}/b")
    assert system.has(f"{folder}/b/d"), "a folder that isn't empty stays"
    system.remove(f"{folder}/b/d")
    system.remove(f"{folder}/b")
    assert system.names(folder) == []
    system.write(f"{folder}/b/c", b"")
    system.remove_all(folder)
    assert not system.has(folder)


def test_what_a_session_lacks_is_said(spark: SparkSession, small: Small) -> None:
    whole = small.file.read_text()

    def says(old: str, new: str, message: str) -> None:
        small.file.write_text(whole.replace(old, new))
        with pytest.raises(InvalidOption, match=message):
            run(read_spec(small.file), spark=spark)

    delta = r"--packages io\.delta:delta-spark_2\.1[23]:VERSION\), with spark\.sql\.extensions="
    output = 'output = "out"'
    says(output, f'{output}\nformat = "delta"', rf"\[pipeline\] format = 'delta': .*{delta}")
    says(
        output,
        f'{output}\nformat = "delta"\ntables = "default"',
        rf"\[pipeline\] format = 'delta': .*{delta}",
    )
    says(output, f'{output}\nformat = "iceberg"\ntables = "gone"', "no such schema: CREATE SCHEMA gone")
    says(output, f'{output}\nformat = "iceberg"\ntables = "gone.x"', r"spark\.sql\.catalog")
    says(output, 'output = "gone://x/out"', "'gone://x/out' can't be opened: .*gone.*hadoop-aws:3")
    path = 'path = "visits.jsonl"'
    says(
        path,
        f'{path.replace("visits", "./visits")}\nformat = "delta"',
        rf"\[input\] path can't be read as delta: .*{delta}",
    )
    with pytest.raises(InvalidOption, match=rf"can't be read as delta: .*{delta}"):
        remaining(spark.range(3), f"{small.folder}/gone", "id", format="delta")
    assert not small.called()

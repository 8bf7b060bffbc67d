"""Hadoop's file systems in the Java of a session, which also read and write its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from intervalq.errors import InvalidOption, short
from intervalq.ledger._files import Files, file_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")


def files_of(place: str, spark: SparkSession | None) -> tuple[Files, str]:
    """The file system of a path or a URL, and the path in it.

    URLs belong to Hadoop's file systems where the session has its own Java; elsewhere, as with Spark Connect,
    to Arrow's.

    Raises:
        InvalidOption: there is no such file system.
    """
    java = None if spark is None else _java_of(spark)
    if "://" not in place or place.startswith("file://") or java is None:
        return file_system(place)
    return HadoopFiles(spark, java, place), place.rstrip("/")


def _java_of(spark: SparkSession) -> Any:  # noqa: ANN401 - py4j has no types
    """The session's Java; None: it is another process', as with Spark Connect."""
    try:
        return spark._jvm  # noqa: SLF001 - there is no other way
    except Exception:  # noqa: BLE001 - whatever a session without it raises
        return None


class HadoopFiles:
    """The file system of a URL, with the session's settings."""

    def __init__(self, spark: Any, java: Any, url: str) -> None:  # noqa: ANN401 - py4j has no types
        self._path: Callable[[str], Any] = java.org.apache.hadoop.fs.Path
        settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
        try:
            self._files: Any = _called(lambda: self._path(url).getFileSystem(settings))
        except OSError as error:
            version = java.org.apache.hadoop.util.VersionInfo.getVersion()
            raise InvalidOption(
                f"{short(url)} can't be opened: {error}: use a scheme that this Spark's Hadoop knows, or "
                "start it with the jars and settings of that file system; for s3a://, --packages "
                f"org.apache.hadoop:hadoop-aws:{version}"
            ) from error

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        if not self.has(folder):
            return []
        return [
            one.getPath().getName() for one in _called(lambda: self._files.listStatus(self._path(folder)))
        ]

    def has(self, path: str) -> bool:
        """See `Files`."""
        return bool(_called(lambda: self._files.exists(self._path(path))))

    def read(self, path: str) -> bytes:
        """See `Files`."""

        def read() -> bytes:
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

        return _called(read)

    def write(self, path: str, data: bytes) -> None:
        """See `Files`."""

        def write() -> None:
            stream = self._files.create(self._path(path), True)
            stream.write(data)
            stream.close()  # where files are objects, it appears now

        _called(write)

    def replace(self, old: str, new: str) -> None:
        """See `Files`."""
        self.remove(new)  # else it isn't renamed
        if not _called(lambda: self._files.rename(self._path(old), self._path(new))):
            raise OSError(f"{old} can't be renamed to {new}")

    def remove(self, path: str) -> None:
        """See `Files`."""
        _called(lambda: self._files.delete(self._path(path), False))

    def remove_all(self, folder: str) -> None:
        """See `Files`."""
        _called(lambda: self._files.delete(self._path(folder), True))


def _called(call: Callable[[], R]) -> R:
    """Call Java.

    Raises:
        FileNotFoundError, OSError: Java has raised the corresponding exception.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # noqa: PLC0415 - an extra

    try:
        return call()
    except Py4JJavaError as error:
        text = str(error.java_exception.toString())
        kind = FileNotFoundError if "FileNotFoundException" in text.partition(":")[0] else OSError
        raise kind(text.partition("\n")[0]) from error

"""The texts that a ledger keeps of how rows ended: answers as functions gave them, errors, log entries."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from anyio import CancelScope, to_thread

from intervalq._spec.codec import encoded, read
from intervalq._spec.strict_json import writer
from intervalq.errors import BadResult, RunChanged, UnreadableValue, short
from intervalq.ledger._large import LargeAnswers, beside
from intervalq.ledger.rules import MAX_VALUE
from intervalq.spark._answers.earlier import reader
from intervalq.spark._answers.kept import IN_FILE, file_of, read_answer, written_answer
from intervalq.spark._paced.handoff import Stamp
from intervalq.spark._paced.job import Job
from intervalq.spark._paced.trial import UNFIT

_encode: Final = writer(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False))

Kept: TypeAlias = dict[str, Any]
"""An answer in its stored form; empty if the call failed."""


class End(NamedTuple):
    """The end of a row: the columns of its result, or an error."""

    value: dict[str, Any] | None
    stamp: Stamp
    error: str | None


class Ends:
    """Writes and reads the ends of a job's rows."""

    def __init__(self, store: str, job: Job, fits: Callable[[str, object], dict[str, Any]]) -> None:
        """`store`: the URL of the ledger's store. `fits`: see `Caller.checked`."""
        self._job = job
        self._run = job.run
        self._fits = fits
        self._fixed = f'"schema":{_json(job.schema)},'
        self._version = "" if job.version is None else f'"version":{_json(job.version)},'
        self._earlier = reader(pa.struct(list(job.columns)))
        folder = job.large_answers or beside(store)
        self._large = None if folder is None else LargeAnswers(folder, job.run)

    def kept(self, key: str, answer: object) -> Kept:
        """An answer in the form in which it is kept.

        Raises:
            BadResult: it has a value of a type that can't be kept.
        """
        try:
            return {"answer": written_answer(answer)}
        except (TypeError, RecursionError) as error:
            raise BadResult(key, f"{error}: return values of JSON, dates, decimals or bytes") from None

    async def failed(self, key: str, stamp: Stamp, kept: Kept, error: str) -> str:
        """The text of a row that failed; without its answer, if that can't be kept with the error."""
        try:
            return await self.written(key, stamp, kept, error)
        except BadResult:
            return await self.written(key, stamp, {}, error)

    async def written(self, key: str, stamp: Stamp, kept: Kept, error: str | None = None) -> str:
        """The text of a row's end: its answer, or its error, or both if the answer doesn't fit.

        A large answer is written into a file, and `kept` has the name of that file from then on.

        Raises:
            BadResult: the answer is too large to be kept.
        """
        text = self._text(kept, stamp, error)
        if _is_large(text) and kept:
            kept["answer"] = {IN_FILE: await self._in_file(key, kept["answer"])}
            text = self._text(kept, stamp, error)
        return text

    def _text(self, kept: Kept, stamp: Stamp, error: str | None) -> str:
        """The JSON of an object with these parts, composed by hand for speed: there is one for each row."""
        answer = f'"answer":{_json(kept["answer"])},{self._fixed}' if kept else ""
        ticket, due, started, ended, host, pid, attempt, calls = stamp
        log = f"{ticket},{due!r},{started!r},{ended!r},{_json_of_host(host)},{pid},{attempt},{calls}"
        why = "" if error is None else f',"error":{_json(error)}'
        return encoded(self._job.codec, f'{{{answer}{self._version}"log":[{log}]{why}}}')

    async def _in_file(self, key: str, answer: object) -> str:
        """Write a large answer into a file; returns its name."""
        too_long = f"its JSON is longer than the {MAX_VALUE} bytes that a row of a ledger keeps"
        if self._large is None:
            raise BadResult(
                key,
                f"{too_long}: give large_answers= a folder that all executors share, return a reference to "
                "it instead, or use ledger=None",
            )
        try:
            with CancelScope(shield=True):  # the end of `drain` cuts off calls, but not answers
                text = encoded(self._job.codec, _json(answer))
                name = await to_thread.run_sync(self._large.write, key, text)
        except OSError as error:
            raise BadResult(
                key, f"{too_long}, and it can't be written into {self._large.place}: {error}"
            ) from error
        return name

    async def read(self, key: str, text: str) -> End:
        """The end that a text describes.

        An answer that didn't fit is fitted to the present schema.

        Raises:
            UnreadableValue: it was written with another codec, or damaged, or its file is gone.
            RunChanged: it was kept for another schema or version, and is not to be replayed.
        """
        data = await self._whole(key, self._data(key, text))
        stamp, error = Stamp(*data["log"]), data.get("error")
        if "answer" not in data:
            return End(self._of_earlier_version(key, data.get("value")), stamp, error)
        if error is None and not self._job.replay:
            if data.get("version") != self._job.version:
                there = short(data["version"]) if "version" in data else "an unnamed one"
                raise RunChanged(self._run, key, f"from another version of the function, {there}")
            if data["schema"] != self._job.schema:
                raise RunChanged(self._run, key, f"for another schema, of {', '.join(self._names(data))}")
        return self._fitted(key, stamp, data["answer"])

    def _fitted(self, key: str, stamp: Stamp, answer: object) -> End:
        try:
            return End(self._fits(key, read_answer(answer)), stamp, None)
        except BadResult as unfit:
            return End(None, stamp, f"{UNFIT}{unfit}")

    def _data(self, key: str, text: str) -> dict[str, Any]:
        found: dict[str, Any] = read(self._job.codec, text, "row %s of ledger %r", short(key), self._run)
        return found

    async def _whole(self, key: str, data: dict[str, Any]) -> dict[str, Any]:
        """The same with the answer, if that is in a file."""
        if (name := file_of(data.get("answer"))) is None:
            return data
        what = f"row {short(key)} of ledger {self._run!r}"
        if self._large is None:
            raise UnreadableValue(what, "its answer is in a file: give large_answers= the folder")
        try:
            text = await to_thread.run_sync(self._large.read, name)
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableValue(what, f"its answer's file can't be read: {error}") from error
        return {**data, "answer": await to_thread.run_sync(read, self._job.codec, text, what)}

    async def is_outdated(self, key: str, text: str) -> bool:
        """Whether a row failed with another version of the function, so that it is to be called again."""
        data = self._data(key, text)
        if data.get("version") == self._job.version:
            return False
        if self._job.replay and "answer" in data:
            whole = await self._whole(key, data)
            return self._fitted(key, Stamp(), whole["answer"]).error is not None
        return True

    def _of_earlier_version(self, key: str, value: object) -> dict[str, Any] | None:
        """The columns of a result that was kept before answers were."""
        if value is None:
            return None
        try:
            return self._fits(key, self._earlier(value))
        except (BadResult, KeyError, TypeError, ValueError):
            raise RunChanged(self._run, key, "for another schema") from None

    @staticmethod
    def _names(data: dict[str, Any]) -> list[str]:
        answer = data["answer"]
        return sorted(map(str, answer)) if isinstance(answer, dict) else ["no columns"]


def _json(value: object) -> str:
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, as of a text that was cut off
        text = json.dumps(value, separators=(",", ":"))
    return text


_json_of_host: Final = lru_cache(maxsize=1)(_json)
"""There is one for each process."""


def _is_large(text: str) -> bool:
    return len(text) > MAX_VALUE // 4 and len(text.encode()) > MAX_VALUE

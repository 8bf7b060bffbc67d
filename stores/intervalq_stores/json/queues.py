"""`file:///path/state.json`: all queues in one JSON file, shared by the processes of one machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from intervalq.rules import State
from intervalq.store import wall_clock
from intervalq_stores._files.advice import Advice, advise
from intervalq_stores._files.jobs import PairJob, StepJob, SwapJob
from intervalq_stores._files.store import FileStore, path_of, stamp
from intervalq_stores._files.worker_thread import Job
from intervalq_stores.json._queue_document import Document


class JSONFileStore(FileStore):
    """Records in one file: read, changed and replaced as a whole under a lock, one process at a time."""

    def __init__(self, url: str) -> None:
        path = path_of(url, "file:///path/state.json")
        super().__init__(path.as_uri(), path)

    def _do(self, take: Callable[[], list[Job]]) -> None:
        with self._file.locked():
            jobs = take()
            if not jobs:
                return
            document = self._read()
            changed = False
            for job in jobs:
                try:
                    changed |= _do(document, job)
                except BaseException as error:  # noqa: BLE001 - it is raised in the waiters
                    job.error = error
                job.stands = job.error is not None or not changed
            if changed:
                self._file.replace(document.to_bytes())

    def _names(self) -> list[str]:
        return self._read().names()

    def _schedules(self) -> dict[str, str]:
        return self._read().schedules()

    def _get(self, queue: str) -> State | None:
        return self._read().get(queue)

    def _read(self) -> Document:
        return Document(self._file.read(), self.url)

    def _signature(self) -> Hashable:
        return stamp(str(self._path))

    def _advise(self) -> Advice:
        return advise(self._file, self._check)

    def _check(self) -> Advice:
        document = self._read()
        names = document.names()
        for name in names:
            document.get(name)
        return [
            ("ok", f"the file can be read; it has {len(names)} {'queue' if len(names) == 1 else 'queues'}")
        ]


def _do(document: Document, job: Job) -> bool:
    """Do a job on the document; returns whether this changed it."""
    if isinstance(job, SwapJob):
        before = document.schedules().get(job.name)
        job.answer = job.swap(before)
        document.put_schedule(job.name, job.answer.text)
        return bool(job.answer.text != before)
    return _step_pair(document, job) if isinstance(job, PairJob) else _step(document, job)


def _step_pair(document: Document, job: PairJob) -> bool:
    """Do a job on two records of the document; returns whether this changed it."""
    at = wall_clock() if job.now is None else job.now
    before, common = document.get(job.queue), document.get(job.common)
    after, common_after, job.answer = job.step(before, common, at)
    if common_after is not common:
        document.put(job.common, common_after)
    if after is not before:
        if before is None and job.now is None:  # a new record removes lapsed ones
            document.forget_lapsed(at)
        document.put(job.queue, after)
    return after is not before or common_after is not common


def _step(document: Document, job: Job) -> bool:
    """Do a job on the document; returns whether this changed it."""
    assert isinstance(job, StepJob)
    at = wall_clock() if job.now is None else job.now
    before = document.get(job.queue)
    after, job.answer = job.step(before, at)
    if after is before:
        return False
    if before is None and job.now is None:  # a new record removes lapsed ones
        document.forget_lapsed(at)
    document.put(job.queue, after)
    return True

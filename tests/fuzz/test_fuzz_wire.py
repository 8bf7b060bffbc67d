"""Messages between a service and its stores: what is read is what was written, or is refused by name."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.material import fuzz
from intervalq._wire import queues, verbs
from intervalq._wire.failures import error_of
from intervalq._wire.intervalq_v1_pb2 import Failure
from intervalq._wire.values import MalformedValue, dumps, loads
from intervalq.errors import IntervalqError
from intervalq.ledger import rules as ledgers
from intervalq.tasks import rules as tasks
from intervalq.testing import CommandSource
from intervalq.testing._ledgers.commands import LedgerCommandSource
from intervalq.testing._tasks.commands import TaskCommandSource
from intervalq.testing._tasks.model import ModelTable

KINDS: list[Any] = [
    verbs.TASKS,
    verbs.LEDGERS,
    verbs.SCHEDULES,
    verbs.LEDGER_ANSWER,
    tasks.Worked,
    verbs.NAMES,
]
WORDS = ["op", "settings", "limits", "slots", "inserts", "session", "rows", "keys", "now", "state", "first"]
WORDS += ["Advance", "Work", "Modify", "Claim", "Names", "SwapSchedule", "interval", "json", "queue", "count"]
jsons = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=5)
    ),
    max_leaves=20,
)


@fuzz(50)
@given(jsons)
def test_anything_else_is_refused(value: Any) -> None:
    data = json.dumps(value).encode()
    for kind in KINDS:
        with suppress(MalformedValue):
            loads(kind, data)
    for read in (queues.read_command, queues.read_common):
        with suppress(MalformedValue):
            read(data)
    for answer in (queues.read_answer, queues.read_keyed_answer):
        with pytest.raises(MalformedValue):
            answer(data, (0, 0))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\0"])
def test_what_no_store_or_answer_can_have_is_refused(text: str) -> None:
    for kind, command in (
        (
            verbs.LEDGERS,
            {"op": "Record", "session": "s", "rows": [{"key": text, "value": "1", "failed": False}]},
        ),
        (verbs.TASKS, {"op": "Modify", "deletes": [{"id": text, "version": 0}]}),
    ):
        with pytest.raises(MalformedValue, match="is not text"):
            loads(kind, json.dumps(command).encode())


@fuzz(100)
@given(st.sampled_from(["DependencyError", "InboxFull", "StoreFull", "StoreError", "Exit", ""]), st.binary())
def test_a_failure_is_an_error_or_is_refused(kind: str, fields: bytes) -> None:
    with suppress(MalformedValue):
        assert isinstance(error_of(Failure(kind=kind, message="m", fields=fields), "s"), IntervalqError)


@fuzz(20)
@given(st.integers(0, 2**32))
def test_commands_are_read_as_they_were_written(seed: int) -> None:
    source, task_source, model = CommandSource(seed), TaskCommandSource(seed, "w"), ModelTable()
    rows, book = LedgerCommandSource(seed), ledgers.MemoryBook()
    for _ in range(20):
        command, _ = source.next(None)
        assert queues.read_command(dumps(verbs.QUEUES, command)) == command
        asked, now = task_source.next(model)
        assert loads(verbs.TASKS, dumps(verbs.TASKS, asked)) == asked
        entry, now = rows.next(book)
        read = loads(verbs.LEDGERS, dumps(verbs.LEDGERS, entry))
        assert (type(read), read) == (type(entry), entry)
        answer = ledgers.apply(book, entry, now)
        assert loads(verbs.LEDGER_ANSWER, dumps(verbs.LEDGER_ANSWER, answer)) == answer

"""EntroQ's docs as rows of a store of tasks: records with keys that change in one step with tasks.

A doc is a row like a task's, but no task:

- The rows of a namespace have a queue of their own, `docs#NAMESPACE`. No queue of tasks can have that name,
  so no worker can claim a doc, and lists of queues leave it out. It is also the name of the namespace in
  access rules.
- The id is `docs#NAMESPACE#ID`, which no task can have: ids belong to a namespace. The value is the content.
- Both keys are in the text of the error, which no change touches: they are read without the contents.
- A claim is a time ahead (`at`), and the claimant is the note in the report on the work (`progress`). Each
  change says both anew. So nobody has claimed a row that is due, and of a namespace the rows of the future
  are claimed.

Docs and tasks of one request are parts of one `Modify`: all or nothing, at the given versions. Whether
another claimant has a doc is seen before, in the very version that is then changed. That look costs one more
round trip if docs are changed or deleted. Claims end by the clock of the service.

No store has an index of keys: a list by keys, and a claim, look at the keys of all docs of the namespace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from intervalq.errors import UnreadableValue
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.model import MILLISECOND
from intervalq.service._entroq.values import Budget, Values, value_of
from intervalq.service._refusal import Code, Refusal
from intervalq.tasks._claim.progress import read
from intervalq.tasks._claim.values import queue_name, text
from intervalq.tasks._spec.ids import DOCS, new_id
from intervalq.tasks.rules import Change, Delete, Depend, Insert, QueueStats, Row

_MAX_KEY: Final = 256


def queue_of(namespace: str) -> str:
    """The queue of a namespace's docs.

    Raises:
        InvalidName: no queue can have the name of the namespace.
    """
    return DOCS + queue_name(namespace)


def row_id(namespace: str, id_: str) -> str:
    """The id of a doc's row.

    Raises:
        InvalidName, InvalidTask: no task or queue can have such a name.
    """
    return f"{queue_of(namespace)}#{text('id', id_)}"


def is_doc(name: str) -> bool:
    """Whether this is the queue of docs, or the id of one's row."""
    return name.startswith(DOCS)


def named(id_: str) -> tuple[str, str]:
    """The namespace and the id of a doc, by the id of its row."""
    namespace, _, own = id_.removeprefix(DOCS).partition("#")
    return namespace, own


# --- what is asked -----------------------------------------------------------------------------------


def insert_of(data: pb.DocData, values: Values) -> Insert:
    """The insert of a doc, which nobody has claimed."""
    keys = [_key("key", data.key), _key("secondary_key", data.secondary_key)]
    return Insert(
        queue_of(data.namespace),
        values.json_of(data.content),
        row_id(data.namespace, data.id or new_id()),
        error=json.dumps(keys),
    )


def change_of(change: pb.DocChange, ahead: int | None, claimant: str, values: Values) -> Change:
    """The change of a doc's content.

    Args:
        change: as the client says it.
        ahead: how long the claimant has it from now on, in microseconds; None: not at all.
        claimant: empty: nobody, so that there is no claim.
        values: reads its content.
    """
    old, new = change.old_id, change.new_data
    if new.namespace not in ("", old.namespace) or new.id not in ("", old.id):
        raise Refusal(Code.INVALID_ARGUMENT, "a doc keeps its namespace and its id: insert another one")
    return claim_of(
        Change(row_id(old.namespace, old.id), old.version, json=values.json_of(new.content)), ahead, claimant
    )


def claim_of(change: Change, ahead: int | None, claimant: str) -> Change:
    """A change that claims a doc for a time, or frees it. See `change_of`."""
    held = ahead is not None and claimant
    return Change(
        change.id,
        change.version,
        json=change.json,
        delay=ahead if held else 0,
        progress=json.dumps({"n": claimant}) if held else "",
    )


def delete_of(doc: pb.DocID) -> Delete:
    """The delete of a doc."""
    return Delete(row_id(doc.namespace, doc.id), doc.version)


def depend_of(doc: pb.DocID) -> Depend:
    """The dependency on a doc."""
    return Depend(row_id(doc.namespace, doc.id), doc.version)


def range_of(query: pb.DocQuery) -> Callable[[str], bool]:
    """Which keys a client wants to see."""
    if query.key_exact:
        return lambda key: key == query.key_exact
    return lambda key: query.key_start <= key and (not query.key_end or key < query.key_end)


def _key(what: str, key: str) -> str:
    if len(key) > _MAX_KEY:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what} has more than {_MAX_KEY} characters")
    return key


# --- what is answered --------------------------------------------------------------------------------


def keys_of(row: Row) -> tuple[str, str]:
    """The key and the secondary key of a doc."""
    try:
        first, second = json.loads(row.error)
    except (ValueError, TypeError):  # somebody has changed it as a task
        return "", ""
    return (first, second) if isinstance(first, str) and isinstance(second, str) else ("", "")


def claimant_of(row: Row) -> str:
    """Who has claimed a doc last, and not freed it; empty: nobody."""
    try:
        return read(row.progress, "").note
    except UnreadableValue:  # likewise
        return ""


def is_held(row: Row, claimant: str, now: int) -> bool:
    """Whether another claimant has a doc now."""
    return row.at > now and claimant_of(row) not in ("", claimant)


def doc_of(row: Row, budget: Budget, *, value: bool = True) -> pb.Doc:
    """A doc as the protocol shows it.

    Raises:
        TooManyValues: there are too many in the answer.
    """
    namespace, id_ = named(row.id)
    first, second = keys_of(row)
    return pb.Doc(
        namespace=namespace,
        id=id_,
        version=row.version,
        claimant=claimant_of(row),
        at_ms=row.at // MILLISECOND,
        key=first,
        secondary_key=second,
        content=value_of(row.json, budget) if value else None,
        created_ms=row.created // MILLISECOND,
        modified_ms=row.modified // MILLISECOND,
    )


def stats_of(queue: QueueStats) -> pb.NamespaceStat:
    """The numbers of a namespace."""
    return pb.NamespaceStat(name=queue.name.removeprefix(DOCS), num_docs=queue.size, num_claimed=queue.future)


def details_of(kind: pb.ActionType, ids: Iterable[str], versions: dict[str, int]) -> list[pb.ModifyDep]:
    """Docs that can't be inserted, changed, deleted or claimed, as details of an error."""
    found = []
    for one in ids:
        namespace, id_ = named(one)
        doc = pb.DocID(namespace=namespace, id=id_, version=versions.get(one, 0))
        found.append(pb.ModifyDep(type=kind, doc_id=doc))
    return found

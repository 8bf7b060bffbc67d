"""Errors of a store on their way to a client: the name of the class, the text, the fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from intervalq import errors
from intervalq._wire.intervalq_v1_pb2 import Failure
from intervalq._wire.values import MalformedValue, dumps, loads
from intervalq.errors import DependencyError, InboxFull, IntervalqError, StoreError

_IDS: Final = ("inserts", "changes", "deletes", "depends", "claims")
_LISTS: Final[Any] = tuple[
    tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]
]
_INBOX: Final[Any] = tuple[str, str, int]

_OF_STORES: Final[dict[str, Callable[[str, str], StoreError]]] = {
    kind.__name__: kind
    for kind in (
        errors.StoreUnavailable,
        errors.StoreTimeout,
        errors.StoreReadOnly,
        errors.StoreFull,
        errors.TransactionConflict,
        errors.CorruptState,
        errors.VersionMismatch,
        errors.UnsupportedOperation,
    )
}
"""Errors of a store that are the same for its clients. What the service itself may not do at its store, or
can't secure there, isn't a client's fault: that is a `StoreError`."""


def failure_of(error: IntervalqError) -> Failure:
    """How an error travels. The address of the service's own store is left out."""
    if isinstance(error, DependencyError):
        fields = dumps(_LISTS, tuple(getattr(error, name) for name in _IDS))
        return Failure(kind="DependencyError", message=str(error), fields=fields)
    if isinstance(error, InboxFull):
        fields = dumps(_INBOX, (error.queue, error.key, error.limit))
        return Failure(kind="InboxFull", message=str(error), fields=fields)
    why = str(error)
    if isinstance(error, StoreError):
        why = why.removeprefix(f"{error.store}: ")
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return Failure(kind=next((kind for kind in kinds if kind in _OF_STORES), "StoreError"), message=why)


def error_of(failure: Failure, store: str) -> IntervalqError:
    """The error that a failure stands for, of the store with this URL.

    Raises:
        MalformedValue: it represents no error.
    """
    if failure.kind == "DependencyError":
        lists: Any = loads(_LISTS, failure.fields)
        return DependencyError(**dict(zip(_IDS, lists, strict=True)))
    if failure.kind == "InboxFull":
        inbox: Any = loads(_INBOX, failure.fields)
        return InboxFull(*inbox)
    if failure.kind != "StoreError" and failure.kind not in _OF_STORES:
        raise MalformedValue(f"{errors.short(failure.kind)} is no error of a store")
    return _OF_STORES.get(failure.kind, StoreError)(store, failure.message)

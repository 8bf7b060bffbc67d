from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChangeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_DEFAULT: _ClassVar[ChangeMode]
    CHANGE_RESET_CLAIMS: _ClassVar[ChangeMode]
    CHANGE_LEASE: _ClassVar[ChangeMode]

class ActionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLAIM: _ClassVar[ActionType]
    DELETE: _ClassVar[ActionType]
    CHANGE: _ClassVar[ActionType]
    DEPEND: _ClassVar[ActionType]
    DETAIL: _ClassVar[ActionType]
    INSERT: _ClassVar[ActionType]
    READ: _ClassVar[ActionType]
CHANGE_DEFAULT: ChangeMode
CHANGE_RESET_CLAIMS: ChangeMode
CHANGE_LEASE: ChangeMode
CLAIM: ActionType
DELETE: ActionType
CHANGE: ActionType
DEPEND: ActionType
DETAIL: ActionType
INSERT: ActionType
READ: ActionType

class TaskID(_message.Message):
    __slots__ = ("id", "version", "queue")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: int
    queue: str
    def __init__(self, id: _Optional[str] = ..., version: _Optional[int] = ..., queue: _Optional[str] = ...) -> None: ...

class TaskData(_message.Message):
    __slots__ = ("queue", "at_ms", "value", "id", "attempt", "err", "by_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    BY_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    at_ms: int
    value: _struct_pb2.Value
    id: str
    attempt: int
    err: str
    by_ms: int
    def __init__(self, queue: _Optional[str] = ..., at_ms: _Optional[int] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., id: _Optional[str] = ..., attempt: _Optional[int] = ..., err: _Optional[str] = ..., by_ms: _Optional[int] = ...) -> None: ...

class TaskChange(_message.Message):
    __slots__ = ("old_id", "new_data", "mode")
    OLD_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_DATA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    old_id: TaskID
    new_data: TaskData
    mode: ChangeMode
    def __init__(self, old_id: _Optional[_Union[TaskID, _Mapping]] = ..., new_data: _Optional[_Union[TaskData, _Mapping]] = ..., mode: _Optional[_Union[ChangeMode, str]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("queue", "id", "version", "at_ms", "claimant_id", "value", "created_ms", "modified_ms", "claims", "attempt", "err")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    queue: str
    id: str
    version: int
    at_ms: int
    claimant_id: str
    value: _struct_pb2.Value
    created_ms: int
    modified_ms: int
    claims: int
    attempt: int
    err: str
    def __init__(self, queue: _Optional[str] = ..., id: _Optional[str] = ..., version: _Optional[int] = ..., at_ms: _Optional[int] = ..., claimant_id: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., created_ms: _Optional[int] = ..., modified_ms: _Optional[int] = ..., claims: _Optional[int] = ..., attempt: _Optional[int] = ..., err: _Optional[str] = ...) -> None: ...

class ClaimRequest(_message.Message):
    __slots__ = ("claimant_id", "queues", "duration_ms", "poll_ms")
    CLAIMANT_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    POLL_MS_FIELD_NUMBER: _ClassVar[int]
    claimant_id: str
    queues: _containers.RepeatedScalarFieldContainer[str]
    duration_ms: int
    poll_ms: int
    def __init__(self, claimant_id: _Optional[str] = ..., queues: _Optional[_Iterable[str]] = ..., duration_ms: _Optional[int] = ..., poll_ms: _Optional[int] = ...) -> None: ...

class ClaimResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: Task
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class ModifyRequest(_message.Message):
    __slots__ = ("claimant_id", "inserts", "changes", "deletes", "depends", "doc_inserts", "doc_changes", "doc_deletes", "doc_depends")
    CLAIMANT_ID_FIELD_NUMBER: _ClassVar[int]
    INSERTS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DELETES_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_FIELD_NUMBER: _ClassVar[int]
    DOC_INSERTS_FIELD_NUMBER: _ClassVar[int]
    DOC_CHANGES_FIELD_NUMBER: _ClassVar[int]
    DOC_DELETES_FIELD_NUMBER: _ClassVar[int]
    DOC_DEPENDS_FIELD_NUMBER: _ClassVar[int]
    claimant_id: str
    inserts: _containers.RepeatedCompositeFieldContainer[TaskData]
    changes: _containers.RepeatedCompositeFieldContainer[TaskChange]
    deletes: _containers.RepeatedCompositeFieldContainer[TaskID]
    depends: _containers.RepeatedCompositeFieldContainer[TaskID]
    doc_inserts: _containers.RepeatedCompositeFieldContainer[DocData]
    doc_changes: _containers.RepeatedCompositeFieldContainer[DocChange]
    doc_deletes: _containers.RepeatedCompositeFieldContainer[DocID]
    doc_depends: _containers.RepeatedCompositeFieldContainer[DocID]
    def __init__(self, claimant_id: _Optional[str] = ..., inserts: _Optional[_Iterable[_Union[TaskData, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[TaskChange, _Mapping]]] = ..., deletes: _Optional[_Iterable[_Union[TaskID, _Mapping]]] = ..., depends: _Optional[_Iterable[_Union[TaskID, _Mapping]]] = ..., doc_inserts: _Optional[_Iterable[_Union[DocData, _Mapping]]] = ..., doc_changes: _Optional[_Iterable[_Union[DocChange, _Mapping]]] = ..., doc_deletes: _Optional[_Iterable[_Union[DocID, _Mapping]]] = ..., doc_depends: _Optional[_Iterable[_Union[DocID, _Mapping]]] = ...) -> None: ...

class ModifyResponse(_message.Message):
    __slots__ = ("inserted", "changed", "inserted_docs", "changed_docs")
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    INSERTED_DOCS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_DOCS_FIELD_NUMBER: _ClassVar[int]
    inserted: _containers.RepeatedCompositeFieldContainer[Task]
    changed: _containers.RepeatedCompositeFieldContainer[Task]
    inserted_docs: _containers.RepeatedCompositeFieldContainer[Doc]
    changed_docs: _containers.RepeatedCompositeFieldContainer[Doc]
    def __init__(self, inserted: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., changed: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., inserted_docs: _Optional[_Iterable[_Union[Doc, _Mapping]]] = ..., changed_docs: _Optional[_Iterable[_Union[Doc, _Mapping]]] = ...) -> None: ...

class TasksRequest(_message.Message):
    __slots__ = ("claimant_id", "queue", "limit", "task_id", "omit_values")
    CLAIMANT_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OMIT_VALUES_FIELD_NUMBER: _ClassVar[int]
    claimant_id: str
    queue: str
    limit: int
    task_id: _containers.RepeatedScalarFieldContainer[str]
    omit_values: bool
    def __init__(self, claimant_id: _Optional[str] = ..., queue: _Optional[str] = ..., limit: _Optional[int] = ..., task_id: _Optional[_Iterable[str]] = ..., omit_values: bool = ...) -> None: ...

class TasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class QueuesRequest(_message.Message):
    __slots__ = ("match_prefix", "match_exact", "limit")
    MATCH_PREFIX_FIELD_NUMBER: _ClassVar[int]
    MATCH_EXACT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    match_prefix: _containers.RepeatedScalarFieldContainer[str]
    match_exact: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, match_prefix: _Optional[_Iterable[str]] = ..., match_exact: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("name", "num_tasks", "num_claimed", "num_available", "max_claims", "num_future")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_TASKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CLAIMED_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    NUM_FUTURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_tasks: int
    num_claimed: int
    num_available: int
    max_claims: int
    num_future: int
    def __init__(self, name: _Optional[str] = ..., num_tasks: _Optional[int] = ..., num_claimed: _Optional[int] = ..., num_available: _Optional[int] = ..., max_claims: _Optional[int] = ..., num_future: _Optional[int] = ...) -> None: ...

class QueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStats]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ...) -> None: ...

class TimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TimeResponse(_message.Message):
    __slots__ = ("time_ms",)
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    def __init__(self, time_ms: _Optional[int] = ...) -> None: ...

class DocID(_message.Message):
    __slots__ = ("namespace", "id", "version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    id: str
    version: int
    def __init__(self, namespace: _Optional[str] = ..., id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DocData(_message.Message):
    __slots__ = ("namespace", "id", "key", "secondary_key", "content", "created_ms", "modified_ms", "at_ms", "by_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECONDARY_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    BY_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    id: str
    key: str
    secondary_key: str
    content: _struct_pb2.Value
    created_ms: int
    modified_ms: int
    at_ms: int
    by_ms: int
    def __init__(self, namespace: _Optional[str] = ..., id: _Optional[str] = ..., key: _Optional[str] = ..., secondary_key: _Optional[str] = ..., content: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., created_ms: _Optional[int] = ..., modified_ms: _Optional[int] = ..., at_ms: _Optional[int] = ..., by_ms: _Optional[int] = ...) -> None: ...

class DocChange(_message.Message):
    __slots__ = ("old_id", "new_data")
    OLD_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_DATA_FIELD_NUMBER: _ClassVar[int]
    old_id: DocID
    new_data: DocData
    def __init__(self, old_id: _Optional[_Union[DocID, _Mapping]] = ..., new_data: _Optional[_Union[DocData, _Mapping]] = ...) -> None: ...

class Doc(_message.Message):
    __slots__ = ("namespace", "id", "version", "claimant", "at_ms", "key", "secondary_key", "content", "created_ms", "modified_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECONDARY_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    id: str
    version: int
    claimant: str
    at_ms: int
    key: str
    secondary_key: str
    content: _struct_pb2.Value
    created_ms: int
    modified_ms: int
    def __init__(self, namespace: _Optional[str] = ..., id: _Optional[str] = ..., version: _Optional[int] = ..., claimant: _Optional[str] = ..., at_ms: _Optional[int] = ..., key: _Optional[str] = ..., secondary_key: _Optional[str] = ..., content: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., created_ms: _Optional[int] = ..., modified_ms: _Optional[int] = ...) -> None: ...

class DocQuery(_message.Message):
    __slots__ = ("namespace", "key_start", "key_end", "limit", "omit_values", "ids", "key_exact")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_START_FIELD_NUMBER: _ClassVar[int]
    KEY_END_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OMIT_VALUES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEY_EXACT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key_start: str
    key_end: str
    limit: int
    omit_values: bool
    ids: _containers.RepeatedScalarFieldContainer[str]
    key_exact: str
    def __init__(self, namespace: _Optional[str] = ..., key_start: _Optional[str] = ..., key_end: _Optional[str] = ..., limit: _Optional[int] = ..., omit_values: bool = ..., ids: _Optional[_Iterable[str]] = ..., key_exact: _Optional[str] = ...) -> None: ...

class DocClaim(_message.Message):
    __slots__ = ("namespace", "claimant", "key", "duration_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CLAIMANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    claimant: str
    key: str
    duration_ms: int
    def __init__(self, namespace: _Optional[str] = ..., claimant: _Optional[str] = ..., key: _Optional[str] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class DocsRequest(_message.Message):
    __slots__ = ("query",)
    QUERY_FIELD_NUMBER: _ClassVar[int]
    query: DocQuery
    def __init__(self, query: _Optional[_Union[DocQuery, _Mapping]] = ...) -> None: ...

class DocsResponse(_message.Message):
    __slots__ = ("docs",)
    DOCS_FIELD_NUMBER: _ClassVar[int]
    docs: _containers.RepeatedCompositeFieldContainer[Doc]
    def __init__(self, docs: _Optional[_Iterable[_Union[Doc, _Mapping]]] = ...) -> None: ...

class ClaimDocsRequest(_message.Message):
    __slots__ = ("claim_query",)
    CLAIM_QUERY_FIELD_NUMBER: _ClassVar[int]
    claim_query: DocClaim
    def __init__(self, claim_query: _Optional[_Union[DocClaim, _Mapping]] = ...) -> None: ...

class ClaimDocsResponse(_message.Message):
    __slots__ = ("docs",)
    DOCS_FIELD_NUMBER: _ClassVar[int]
    docs: _containers.RepeatedCompositeFieldContainer[Doc]
    def __init__(self, docs: _Optional[_Iterable[_Union[Doc, _Mapping]]] = ...) -> None: ...

class NamespaceStat(_message.Message):
    __slots__ = ("name", "num_docs", "num_claimed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_DOCS_FIELD_NUMBER: _ClassVar[int]
    NUM_CLAIMED_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_docs: int
    num_claimed: int
    def __init__(self, name: _Optional[str] = ..., num_docs: _Optional[int] = ..., num_claimed: _Optional[int] = ...) -> None: ...

class NamespacesRequest(_message.Message):
    __slots__ = ("match_prefix", "match_exact", "limit")
    MATCH_PREFIX_FIELD_NUMBER: _ClassVar[int]
    MATCH_EXACT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    match_prefix: _containers.RepeatedScalarFieldContainer[str]
    match_exact: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    def __init__(self, match_prefix: _Optional[_Iterable[str]] = ..., match_exact: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ...) -> None: ...

class NamespacesResponse(_message.Message):
    __slots__ = ("namespaces",)
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStat]
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceStat, _Mapping]]] = ...) -> None: ...

class ModifyDep(_message.Message):
    __slots__ = ("type", "id", "msg", "doc_id")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    DOC_ID_FIELD_NUMBER: _ClassVar[int]
    type: ActionType
    id: TaskID
    msg: str
    doc_id: DocID
    def __init__(self, type: _Optional[_Union[ActionType, str]] = ..., id: _Optional[_Union[TaskID, _Mapping]] = ..., msg: _Optional[str] = ..., doc_id: _Optional[_Union[DocID, _Mapping]] = ...) -> None: ...

class AuthzDep(_message.Message):
    __slots__ = ("actions", "exact", "prefix", "msg")
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    MSG_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.RepeatedScalarFieldContainer[ActionType]
    exact: str
    prefix: str
    msg: str
    def __init__(self, actions: _Optional[_Iterable[_Union[ActionType, str]]] = ..., exact: _Optional[str] = ..., prefix: _Optional[str] = ..., msg: _Optional[str] = ...) -> None: ...

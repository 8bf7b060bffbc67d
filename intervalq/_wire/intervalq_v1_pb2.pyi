from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    QUEUES: _ClassVar[Kind]
    TASKS: _ClassVar[Kind]
    LEDGERS: _ClassVar[Kind]
    SCHEDULES: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
QUEUES: Kind
TASKS: Kind
LEDGERS: Kind
SCHEDULES: Kind

class Step(_message.Message):
    __slots__ = ("version", "kind", "name", "command", "known", "now")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    version: int
    kind: Kind
    name: str
    command: bytes
    known: bytes
    now: int
    def __init__(self, version: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., name: _Optional[str] = ..., command: _Optional[bytes] = ..., known: _Optional[bytes] = ..., now: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("answer", "failure")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    failure: Failure
    def __init__(self, answer: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "fields")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    fields: bytes
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., fields: _Optional[bytes] = ...) -> None: ...

class Subject(_message.Message):
    __slots__ = ("version", "kind", "name")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    version: int
    kind: Kind
    name: str
    def __init__(self, version: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., name: _Optional[str] = ...) -> None: ...

class Wakeup(_message.Message):
    __slots__ = ("handed",)
    HANDED_FIELD_NUMBER: _ClassVar[int]
    handed: bytes
    def __init__(self, handed: _Optional[bytes] = ...) -> None: ...

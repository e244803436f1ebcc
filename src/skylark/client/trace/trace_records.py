"""Trace records of producers and consumers, and their text form.

A message of the trace topic holds records; fields are joined by U+0001, each record ends with
U+0002. A missing tag or key is written ``null``, as Java prints it::

    Pub             time region group topic msgId tags keys storeHost bodyLength cost msgType
                    offsetMsgId success [clientHost]
    SubBefore       time region group requestId msgId retryTimes keys
    SubAfter        requestId msgId cost success keys contextCode [time group]
    EndTransaction  time region group topic msgId tags keys storeHost msgType transactionId state
                    fromCheck
    Recall          time region group topic msgId success

SubBefore and SubAfter of one handler call share their request id. Readers accept shorter records of
old clients, and skip unknown kinds. Counterpart of Java's
``TraceDataEncoder``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from skylark.core.errors import RemoteProtocolError

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
NULL: Final = "null"

#: Separators in keys of an application become blanks.
_NO_SEPARATORS: Final = str.maketrans(FIELD_END + RECORD_END, "  ")


class TraceMessageType(enum.IntEnum):
    """The type of a sent message."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class PubTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A message was sent. ``client_host`` is only read, from clients that write it."""

    time_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    body_size: int
    cost_ms: int
    message_type: int
    offset_msg_id: str = ""
    success: bool = True
    client_host: str = ""


class SubBeforeTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A handler call with a message starts."""

    time_ms: int
    region_id: str
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str | None


class SubAfterTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A handler call has ended; ``cost_ms`` is its duration divided by its messages.

    ``context_code`` is a :class:`~skylark.client.consumer.push.concurrent_settlement.ReturnType`.
    Without a time, the record is written as for the cloud: without the group too.
    """

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str | None
    context_code: int = 0
    time_ms: int | None = None
    group: str | None = None


class EndTransactionTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction was ended."""

    time_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str
    message_type: int = TraceMessageType.TRANSACTION_COMMIT
    transaction_id: str
    state: str
    from_check: bool


class RecallTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A timed message was recalled."""

    time_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    success: bool


TraceT = TypeVar("TraceT", bound=msgspec.Struct)
Trace: TypeAlias = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace


# ---- writing -------------------------------------------------------------------------------------


def encode_trace(trace: Trace) -> str:
    """One record, with its end."""
    return FIELD_END.join(map(_text, _fields(trace))) + RECORD_END


def trace_keys(trace: Trace) -> list[str]:
    """The keys of a record in the index: the message id, then the keys of the message."""
    keys = None if isinstance(trace, RecallTrace) else trace.keys
    return [trace.msg_id, *(keys or "").split()]


def _fields(trace: Trace) -> tuple[object, ...]:
    match trace:
        case PubTrace():
            return ("Pub", *msgspec.structs.astuple(trace)[:-1])
        case SubBeforeTrace():
            return ("SubBefore", *msgspec.structs.astuple(trace))
        case SubAfterTrace(time_ms=None):
            return ("SubAfter", *msgspec.structs.astuple(trace)[:-2], "")
        case SubAfterTrace():
            return ("SubAfter", *msgspec.structs.astuple(trace))
        case EndTransactionTrace():
            return ("EndTransaction", *msgspec.structs.astuple(trace))
    return ("Recall", *msgspec.structs.astuple(trace))


def _text(field: object) -> str:
    if field is None:
        return NULL
    if isinstance(field, bool):
        return "true" if field else "false"
    if isinstance(field, int):
        return int.__repr__(field)  # also of an enum
    return str(field).translate(_NO_SEPARATORS)


# ---- reading -------------------------------------------------------------------------------------


def decode_traces(text: str) -> list[Trace]:
    """All records of a message; raises RemoteProtocolError for one that cannot be read."""
    traces: list[Trace] = []
    for record in text.split(RECORD_END):
        kind, *fields = record.rstrip(FIELD_END).split(FIELD_END)
        read = _READERS.get(kind)
        if read is not None:
            count = len(fields) + 1
            try:
                traces.append(read(fields))
            except (TypeError, ValueError) as error:
                raise RemoteProtocolError(
                    f"a trace record of kind {kind} with {count} fields is broken"
                ) from error
    return traces


def _read(kind: type[TraceT], texts: list[str]) -> TraceT:
    """A record of this kind from its fields in their order; those that are missing default."""
    fields = zip(msgspec.structs.fields(kind), texts, strict=False)
    return kind(**{field.name: _value(field.type, text) for field, text in fields})


def _value(kind: Any, text: str) -> object:
    if kind is int or kind == int | None:
        return int(text)
    if kind is bool:
        return text.lower() == "true"
    return None if text == NULL and kind is not str else text


def _pub(texts: list[str]) -> Trace:
    if len(texts) < len(PubTrace.__struct_fields__) - 1:
        texts.insert(PubTrace.__struct_fields__.index("offset_msg_id"), "")  # of an old client
    return _read(PubTrace, texts)


def _sub_before(texts: list[str]) -> Trace:
    return _read(SubBeforeTrace, [*texts, ""])  # a record without keys ends before them


def _sub_after(texts: list[str]) -> Trace:
    if len(texts) < len(SubAfterTrace.__struct_fields__):
        del texts[SubAfterTrace.__struct_fields__.index("time_ms") :]
    return _read(SubAfterTrace, [*texts, ""] if len(texts) == 4 else texts)


_READERS: Final[dict[str, Callable[[list[str]], Trace]]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": lambda texts: _read(EndTransactionTrace, texts),
    "Recall": lambda texts: _read(RecallTrace, texts),
}

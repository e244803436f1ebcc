"""What two answers must have in common: the shape of a body.

A shape is the body with every number, text and truth value replaced by its type. Of a list the
shapes of its elements count, not how many there are or in which order. Keys count as they are, also
in maps such as queue -> offset: both brokers were set up alike.

Bodies are JSON as fastjson writes it, records of the log, settings one per line, or bytes that are
none of these, of which only the length counts. Of records more counts than their shape: which
messages they are, and which properties they have.
"""

from __future__ import annotations

from typing import Any

from skylark.wire.codes import RequestCode
from skylark.wire.fastjson_reader import ObjectKey, parse
from skylark.wire.layout import MAGIC_V1, MAGIC_V2
from skylark.wire.message import MessageRecord, iter_records

_MAGICS = {magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)}


def body_shape(request_code: int, body: bytes | None) -> Any:
    if not body:
        return None
    if is_records(body):
        return [record_shape(record) for record in iter_records(body)]
    if body[:1] in (b"{", b"["):
        return json_shape(parse(body))
    if request_code == RequestCode.GET_BROKER_CONFIG:
        return sorted(line.partition("=")[0] for line in body.decode().splitlines())
    return f"{len(body)} bytes"


def is_records(body: bytes | None) -> bool:
    return body is not None and body[4:8] in _MAGICS


def record_shape(record: MessageRecord) -> tuple[Any, ...]:
    return (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.body,
        sorted(record.properties),
    )


def json_shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): json_shape(member) for key, member in value.items()}
    if isinstance(value, list):
        return sorted({repr(json_shape(element)) for element in value})
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _key(key: Any) -> str:
    return repr(dict(key)) if isinstance(key, ObjectKey) else str(key)

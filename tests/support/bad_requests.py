"""Requests as no client should send them, made from the catalogue, and frames made by hand.

Every request code has cases of its own: no fields at all, one field missing, one field of another
type or far out of its range, a body that is garbage or says little. The other fields are such that
the request would be understood.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.rows.catalogue_row import Row

#: What is not of the type, out of range, or means something else than it should.
VALUES: Final = (
    "", " ", "abc", "-1", "2147483648", "-9223372036854775808", "9" * 30, "1.5", "null", "\0",
    "\x01\x02", "é" * 10, "x" * 40_000, "../../etc", "%RETRY%x", "TBW102", "{}",
)  # fmt: skip
BODIES: Final = (
    None, b"{", b"{}", b"[]", b"null", b"1", b'"x"', b"[null]", b"\0" * 50, b"\xff\xfe" * 30,
    b'{"a":' * 500, b"=\n", b"x=1\n", b'{"topicConfigList":[null]}',
    b'{"clientID":null,"consumerDataSet":[null]}',
    b'{"clientID":"c","consumerDataSet":[{}],"producerDataSet":[{}]}',
    b'{"mqSet":[{}],"clientId":"c","consumerGroup":"g"}',
    b'{"offsetTable":{{"topic":1}:"x"}}',
)  # fmt: skip
#: Good values of fields that are neither topic nor group.
TEXT, NUMBER, TRUTH = "x", "1", "true"


def rows() -> list[Row]:
    """The requests that brokers are asked."""
    return [row for row in CATALOGUE.values() if "->B" in row.direction]


def bad_requests(row: Row, rng: random.Random) -> Iterator[Command]:
    """All cases of one request."""
    code = int(row.code)
    yield Command(code=code, version=CURRENT_VERSION)
    for body in BODIES:
        yield Command(code=code, ext={}, body=body, version=CURRENT_VERSION)
    good = good_fields(row)
    for body in BODIES:
        yield Command(code=code, ext=dict(good), body=body, version=CURRENT_VERSION)
    for name in good:
        for value in (None, *VALUES):
            ext = {**good, name: value}
            given = {key: text for key, text in ext.items() if text is not None}
            yield Command(code=code, ext=given, body=rng.choice(BODIES), version=CURRENT_VERSION)


def good_fields(row: Row) -> dict[str, str]:
    """Fields with which the request would be understood."""
    if row.request_header is None:
        return {}
    return {
        field.encode_name: _good_value(field.encode_name, field.type)
        for field in msgspec.structs.fields(row.request_header)
    }


def _good_value(name: str, field_type: Any) -> str:
    if name == "b" or "opic" in name:
        return "T"
    if name == "a" or "roup" in name:
        return "g"
    kind = str(field_type)
    return TRUTH if "bool" in kind else NUMBER if "int" in kind or "float" in kind else TEXT


def is_left_undecided(request: Command) -> bool:
    """Whether it is the one request that has no answer when all its fields can be read: the end of
    a transaction which says neither commit nor rollback."""
    return request.code == RequestCode.END_TRANSACTION


# --- frames -----------------------------------------------------------------------------------


def json_frame(header: Any, body: bytes = b"x") -> bytes:
    """A frame with this header, which may be anything; bytes are taken as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">iI", 4 + len(text) + len(body), len(text)) + text + body


def binary_frame(code: int, ext: dict[str, str | bytes], body: bytes = b"x") -> bytes:
    """A frame with a binary header, whose fields need not be text."""
    fields = b"".join(
        struct.pack(">H", len(name)) + name.encode() + struct.pack(">i", len(value)) + value
        for name, given in ext.items()
        for value in [given.encode() if isinstance(given, str) else given]
    )
    head = struct.pack(">hbhiiii", code, 0, CURRENT_VERSION, 7, 0, 0, len(fields))
    length = 4 + len(head) + len(fields) + len(body)
    return struct.pack(">iI", length, 1 << 24 | len(head) + len(fields)) + head + fields + body


def send_fields(**changes: Any) -> dict[str, Any]:
    """The fields of SEND_MESSAGE_V2."""
    return {
        "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": "", **changes,
    }  # fmt: skip

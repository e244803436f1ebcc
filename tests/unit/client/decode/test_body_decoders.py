"""Decoders of message bodies: values, and nothing but DecodeError for anything else."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import fastavro
import msgspec
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.decode.body_decoders import FORMATS, DecodeError, make_decoder
from skylark.client.decode.protobuf_decoder import ProtobufDecoder
from skylark.client.decode.schema_registry import RegistryUnavailableError, read_indexes
from skylark.core.errors import ConfigError

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "uid", "type": "string"},
        {"name": "amount", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "paid", "type": "boolean", "default": True}]}
ORDER = {"uid": "u1", "amount": 7, "note": None}


def avro(value: Any, schema: Any = AVRO) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """order.proto: a message with a field of each kind."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="LabelsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("uid", field.TYPE_STRING, one, None),
            ("amount", field.TYPE_INT64, one, None),
            ("state", field.TYPE_ENUM, one, ".shop.State"),
            ("lines", field.TYPE_MESSAGE, many, ".shop.Line"),
            ("labels", field.TYPE_MESSAGE, many, ".shop.Order.LabelsEntry"),
            ("gift", field.TYPE_MESSAGE, one, ".shop.Line"),
            ("raw", field.TYPE_BYTES, one, None),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    return file


def descriptor_set() -> bytes:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.append(order_file())
    return files.SerializeToString()


def protobuf() -> bytes:
    """An order, encoded by the protobuf library."""
    from google.protobuf import message_factory

    kind = message_factory.GetMessageClass(
        ProtobufDecoder(descriptor_set(), "shop.Order").descriptor
    )
    order: Any = kind(uid="u1", amount=7, state=1, raw=b"\xff")
    order.lines.add(sku="a")
    order.lines.add(sku="b")
    order.labels["x"] = 3
    return bytes(order.SerializeToString())


PLAIN = {
    "uid": "u1", "amount": 7, "state": "PAID", "lines": [{"sku": "a"}, {"sku": "b"}],
    "labels": {"x": 3}, "gift": None, "raw": b"\xff",
}  # fmt: skip


def make(name: str) -> Any:
    if name == "avro":
        return make_decoder(name, schema=json.dumps(AVRO).encode())
    if name == "protobuf":
        return make_decoder(name, schema=descriptor_set(), message="shop.Order")
    return make_decoder(name)


@pytest.mark.parametrize(
    ("name", "body", "value"),
    [
        ("text", "größer".encode(), "größer"),
        ("hex", b"\x00\xff", "00ff"),
        ("json", b'{"uid": "u1", "n": [1, 2.5, null]}', {"uid": "u1", "n": [1, 2.5, None]}),
        ("msgpack", msgspec.msgpack.encode({"uid": "u1", "raw": b"x"}), {"uid": "u1", "raw": b"x"}),
        ("avro", avro(ORDER), ORDER),
        ("protobuf", protobuf(), PLAIN),
    ],
)
def test_values(name: str, body: bytes, value: Any) -> None:
    assert make(name).decode(body) == value


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("text", b"ab\xff", "no UTF-8 text: invalid start byte at byte 2"),
        ("json", b"{", "no JSON"),
        ("json", b"[" * 100_000, "no JSON"),
        ("msgpack", b"\xc1", "no MessagePack"),
        ("avro", b"", "no Avro"),
        ("avro", avro(ORDER) + b"x", "1 bytes are left"),
        ("protobuf", b"\x0a\x05ab", "no Protobuf message shop.Order"),
    ],
)
def test_broken_bodies(name: str, body: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        make(name).decode(body)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FORMATS), st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_decode_error(name: str, body: bytes) -> None:
    with contextlib.suppress(DecodeError):
        make(name).decode(body)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("xml", {}, "no format 'xml'"),
        ("avro", {}, "needs a schema"),
        ("json", {"schema": b"{}"}, "takes no schema"),
        ("text", {"registry": "http://h:1"}, "no schemas in a registry"),
        ("avro", {"schema": b"{"}, "Avro schema cannot be read"),
        ("avro", {"schema": b'{"type": "nosuch"}'}, "Avro schema is not valid"),
        ("avro", {"schema": b"{}", "message": "M"}, "only the format protobuf"),
        ("protobuf", {"schema": b"x"}, "no descriptor set"),
        ("protobuf", {"schema": descriptor_set()}, "several messages"),
        ("protobuf", {"schema": descriptor_set(), "message": "shop.No"}, "no message shop.No"),
        ("avro", {"registry": "ftp://h"}, "no address of a schema registry"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_decoder(name, **options)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"needs fastavro: pip install .*schemas"):
        make_decoder("avro", schema=b'"string"')


# ---- registry ------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """A registry with three schemas."""

    schemas: ClassVar[dict[int, dict[str, str]]] = {
        1: {"schema": json.dumps(AVRO)},
        2: {
            "schema": base64.b64encode(order_file().SerializeToString()).decode(),
            "schemaType": "PROTOBUF",
        },
        3: {"schema": "{}", "schemaType": "JSON"},
    }
    asked: ClassVar[list[str]] = []
    failures: ClassVar[list[int]] = []  # answered first, one by one

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.failures:
            self.send_response(self.failures.pop(0))
            self.end_headers()
            return
        found = self.schemas.get(int(self.path.partition("?")[0].rpartition("/")[2]))
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error_code": 40403}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def framed(number: int, rest: bytes) -> bytes:
    return struct.pack(">BI", 0, number) + rest


def test_schemas_of_a_registry_are_fetched_once(registry: str) -> None:
    decoder = make_decoder("avro", registry=registry)
    Handler.asked.clear()
    for _ in range(3):
        assert decoder.decode(framed(1, avro(ORDER))) == ORDER
    assert Handler.asked == ["/schemas/ids/1?format=serialized"]
    newer = make_decoder("avro", registry=registry, schema=json.dumps(WIDER).encode())
    assert newer.decode(framed(1, avro(ORDER))) == {**ORDER, "paid": True}
    assert make_decoder("json", registry=registry).decode(framed(3, b"[1]")) == [1]


def test_a_protobuf_message_is_chosen_by_its_index(registry: str) -> None:
    decoder = make_decoder("protobuf", registry=registry)
    assert decoder.decode(framed(2, b"\x02\x02" + protobuf())) == PLAIN
    assert decoder.decode(framed(2, b"\x00\x0a\x01z")) == {"sku": "z"}  # the first one
    given = make_decoder(
        "protobuf", registry=registry, schema=descriptor_set(), message="shop.Order"
    )
    assert given.decode(framed(2, b"\x02\x02" + protobuf())) == PLAIN


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("avro", b"\x00\x00", "too few for the number of a schema"),
        ("avro", b"\x01\x00\x00\x00\x01x", "the first byte is 1"),
        ("avro", framed(9, b""), "answers 404 for 9"),
        ("avro", framed(2, b""), "schema 2 is PROTOBUF, not AVRO"),
        ("protobuf", framed(2, b"\x02\x08"), r"no message \(4,\)"),
        ("protobuf", framed(2, b"\x02"), "cut off"),
        ("protobuf", framed(2, b"\x02\x01"), "-1 is no index"),
        ("protobuf", framed(2, b"\x7f"), "-64 indexes of a message are too many"),
    ],
)
def test_broken_frames(registry: str, name: str, body: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        make_decoder(name, registry=registry).decode(body)


def test_a_registry_that_does_not_answer_says_nothing_about_the_body() -> None:
    with pytest.raises(RegistryUnavailableError, match="does not answer"):
        make_decoder("avro", registry="http://127.0.0.1:1").decode(framed(1, b""))


@pytest.mark.parametrize("code", [408, 429, 500, 503])
def test_a_registry_that_fails_is_asked_again(registry: str, code: int) -> None:
    decoder = make_decoder("avro", registry=registry)
    Handler.failures.append(code)
    with pytest.raises(RegistryUnavailableError, match=f"answers {code} for 1"):
        decoder.decode(framed(1, avro(ORDER)))
    assert decoder.decode(framed(1, avro(ORDER))) == ORDER


def test_a_type_for_json(registry: str) -> None:
    for url, frame in (None, b""), (registry, framed(3, b"")):
        decoder = make_decoder("json", kind=dict[str, bytes], registry=url)
        assert decoder.decode(frame + b'{"raw": "aGk="}') == {"raw": b"hi"}


def test_indexes() -> None:
    assert read_indexes(b"\x00rest", 0) == ((0,), 1)
    assert read_indexes(b"\x04\x02\x80\x02", 0) == ((1, 128), 4)

"""Properties of the JSON bodies: round trips, and one typed error for everything else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies.common_body import DataVersion, MessageQueue
from skylark.wire.bodies.heartbeat import HeartbeatData
from skylark.wire.bodies.register import (
    RegisterBrokerBody,
    decode_register_body,
    encode_register_body,
)
from skylark.wire.bodies.stats import ConsumeStatsList
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fastjson_reader import ObjectKey, parse
from skylark.wire.frame import decode_frame
from tests.support.mutations import recorded_frames

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
SCALAR = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT

_ROWS = CATALOGUE.values()
_BODIES = [body for row in _ROWS for body in (row.request_body_type, row.response_body_type)]
BODY_TYPES = list({str(body): body for body in _BODIES if body is not None}.values())


def values_of(info: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of any type that a body declares."""
    if isinstance(info, inspect.UnionType):
        return st.one_of([values_of(each) for each in info.types])
    if isinstance(info, inspect.NoneType):
        return st.none()
    if isinstance(info, inspect.StructType):
        members = {field.name: member_values(field) for field in info.fields}
        return st.fixed_dictionaries({}, optional=members).map(lambda given: info.cls(**given))
    if isinstance(info, inspect.DictType):
        return st.dictionaries(values_of(info.key_type), values_of(info.value_type), max_size=2)
    if isinstance(info, inspect.ListType):
        return st.lists(values_of(info.item_type), max_size=2)
    if isinstance(info, inspect.EnumType):
        return st.sampled_from(list(info.cls))
    if isinstance(info, inspect.IntType):
        low, high = info.ge, info.le
        return st.integers(-(2**63) if low is None else low, 2**63 - 1 if high is None else high)
    if isinstance(info, inspect.FloatType):
        return st.floats(allow_nan=False, allow_infinity=False)
    if isinstance(info, inspect.BoolType):
        return st.booleans()
    assert isinstance(info, inspect.StrType), info
    return TEXT


def member_values(field: inspect.Field) -> st.SearchStrategy[Any]:
    """``None`` is not written, so it reads back as the default, which is not always ``None``."""
    values = values_of(field.type)
    return values if field.default is None else values.filter(lambda value: value is not None)


@pytest.mark.parametrize("body_type", BODY_TYPES, ids=str)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_body_survives_both_forms(body_type: Any, data: st.DataObject) -> None:
    value = data.draw(values_of(inspect.type_info(body_type)))
    assert decode_body(body_type, encode_body(value)) == value
    standard = encode_body(value, standard=True)
    assert decode_body(body_type, standard) == value
    assert standard.isascii()
    json.loads(standard)


@settings(max_examples=100, deadline=None)
@given(value=values_of(inspect.type_info(RegisterBrokerBody)), compress=st.booleans())
def test_registrations(value: RegisterBrokerBody, compress: bool) -> None:
    wrapper = value.topic_config_serialize_wrapper
    for name, topic in wrapper.topic_config_table.items():
        topic.topic_name = name
    for name, mapping in wrapper.topic_queue_mapping_info_map.items():
        mapping.topic = name
    data = encode_register_body(value, compress=compress)
    try:
        found = decode_register_body(data, version=513)
    except RemoteProtocolError:
        # The text form of a topic cannot hold a name with a blank.
        assert compress
        assert any(" " in name for name in wrapper.topic_config_table)
        return
    if not compress:
        assert found == value
    elif not any(" " in name for name in wrapper.topic_config_table):
        again = found.topic_config_serialize_wrapper
        assert found.filter_server_list == value.filter_server_list
        assert again.data_version == wrapper.data_version
        assert again.topic_queue_mapping_info_map == wrapper.topic_queue_mapping_info_map
        assert {name: topic.to_text() for name, topic in again.topic_config_table.items()} == {
            name: topic.to_text() for name, topic in wrapper.topic_config_table.items()
        }


TREES = st.recursive(
    SCALAR,
    lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXT | INT64, part, max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_what_is_written_can_be_parsed(tree: Any) -> None:
    def without_none(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_none(each) for key, each in value.items() if each is not None}
        return [without_none(each) for each in value] if isinstance(value, list) else value

    data = encode_body(tree)
    if b'"$ref"' not in data:
        assert parse(data) == without_none(tree)


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_the_parser_reads_what_json_writes(tree: Any) -> None:
    text = json.dumps(tree, ensure_ascii=False, indent=1)
    if '"$ref"' not in text:
        assert parse(text) == json.loads(text)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.builds(MessageQueue, topic=TEXT, queue_id=st.integers(0, 9)), INT64))
def test_queues_as_keys_keep_their_order(table: dict[MessageQueue, int]) -> None:
    parsed = parse(encode_body(table))
    assert list(parsed.values()) == list(table.values())
    assert all(isinstance(key, ObjectKey) for key in parsed)
    assert decode_body(dict[MessageQueue, int], encode_body(table)) == table


def only_the_typed_error(body_type: Any, data: bytes) -> None:
    try:
        value = decode_body(body_type, data)
    except RemoteProtocolError:
        return
    encode_body(value)
    encode_body(value, standard=True)


# Pieces that make sense to the dialect, so that many of their combinations get far.
MARKS = ["{", "}", "[", "]", ",", ":", '"', "\\", "\\u", "ud800", " ", "\n", "\u4e2d"]
VALUES = ["0", "-", "1.0E10", "9" * 70, "null", "true", '"a"', '"$"', '"@"', '".."', '"$.a[0]"']
NAMES = ['"$ref":', '"consumerDataSet":', '"consumeType":', '"offsetTable":', '"counter":', "0:"]
PIECES = st.sampled_from([*MARKS, *VALUES, *NAMES])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join))
def test_text_that_looks_like_a_body(text: str) -> None:
    for body_type in (HeartbeatData, ConsumeStatsList, DataVersion, list[str]):
        only_the_typed_error(body_type, text.encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_garbage(data: bytes) -> None:
    for body_type in (HeartbeatData, ConsumeStatsList, list[MessageQueue]):
        only_the_typed_error(body_type, data)
    for compressed in (False, True):
        try:
            decode_register_body(data, version=513, compressed=compressed)
        except RemoteProtocolError:
            continue


def recorded_json_bodies() -> list[bytes]:
    commands = map(decode_frame, recorded_frames())
    bodies = {command.body for command in commands if command.body is not None}
    return sorted(body for body in bodies if body[:1] in b"{[" and len(body) < 5000)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_recorded_bodies(seed: int) -> None:
    rng = random.Random(seed)
    bodies = recorded_json_bodies()
    assert len(bodies) > 100
    for _ in range(600):
        data = bytearray(rng.choice(bodies))
        for _ in range(rng.choice((1, 1, 2, 8))):
            damage(data, rng)
        only_the_typed_error(rng.choice(BODY_TYPES), bytes(data))


def damage(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) + 1)
    stop = start + rng.choice((0, 1, 2, 10))
    tokens = (b"{", b"}", b"[", b'"', b":", b",", b"0", b"null", b'{"$ref":"$"}', b"\xff", b"\\u")
    data[start:stop] = rng.choice((b"", rng.randbytes(1), rng.choice(tokens)))

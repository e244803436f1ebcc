"""The dialect writer: order, omissions, keys, numbers, escapes."""

from __future__ import annotations

import json
from enum import IntEnum

import msgspec
import pytest

from skylark.core.errors import LocalProtocolError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.fastjson_writer import write

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


class Bean(msgspec.Struct, rename="camel"):
    zeta: int = 1
    consume_ok: bool | None = None
    alpha_beta: str | None = None
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    inner: Bean | None = None


class Number(IntEnum):
    SEVEN = 7


def test_members_are_sorted_by_wire_name_and_none_is_left_out() -> None:
    assert write(Bean()) == '{"consumeRT":0.0,"zeta":1}'
    assert (
        write(Bean(consume_ok=False, alpha_beta="", inner=Bean()))
        == '{"alphaBeta":"","consumeOk":false,"consumeRT":0.0,"inner":{"consumeRT":0.0,"zeta":1},'
        '"zeta":1}'
    )


def test_dictionaries_keep_their_order_and_drop_none() -> None:
    assert write({"b": 1, "a": None, "c": [None, 2]}) == '{"b":1,"c":[null,2]}'
    assert write([{}, [], ()]) == "[{},[],[]]"
    assert write({"only": None}) == "{}"


@pytest.mark.spec("remoting.10.12")
def test_keys() -> None:
    assert write({0: "a", -1: "b"}) == '{0:"a",-1:"b"}'
    assert write({QUEUE: 9}) == '{{"brokerName":"b","queueId":0,"topic":"T"}:9}'


def test_keys_in_standard_json() -> None:
    assert write({0: "a", -1: "b"}, standard=True) == '{"0":"a","-1":"b"}'
    text = write({QUEUE: 9}, standard=True)
    ((key, value),) = json.loads(text).items()
    assert (json.loads(key), value) == ({"brokerName": "b", "queueId": 0, "topic": "T"}, 9)


def test_scalars() -> None:
    assert write([True, False, None, -5, 2**63 - 1, 1.5, "x"]) == (
        '[true,false,null,-5,9223372036854775807,1.5,"x"]'
    )
    assert write([ConsumeType.CONSUME_POP, Number.SEVEN]) == '["CONSUME_POP",7]'
    assert write({ConsumeType.CONSUME_POP: 1}) == '{"CONSUME_POP":1}'


def test_only_the_standard_form_escapes_what_is_not_ascii() -> None:
    assert write("\u4e2d/\x7f\x0b\t") == '"\u4e2d/\x7f\\u000b\\t"'
    assert write("\u4e2d\U0001f600", standard=True) == '"\\u4e2d\\ud83d\\ude00"'
    assert write({"\u4e2d": 1}, standard=True) == '{"\\u4e2d":1}'


def test_numbers_that_json_does_not_know_are_null() -> None:
    assert write([float("nan"), float("inf"), float("-inf")]) == "[null,null,null]"


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}])
def test_no_json_form(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        write(value)


@pytest.mark.parametrize("key", [True, None, 1.5, (1, 2)])
def test_no_key(key: object) -> None:
    with pytest.raises(LocalProtocolError):
        write({key: 1})

"""JSON headers: what Java writes, and what other clients really send."""

from __future__ import annotations

import json

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.command import Command
from skylark.wire.header_json import decode_json_header, encode_json_header


@pytest.mark.spec("remoting.10.7")
def test_ext_numbers_and_an_unknown_language_are_accepted() -> None:
    command = decode_json_header(
        b'{"code":310,"language":"FOO","extFields":{"topic":"T","queueId":0},"opaque":7}'
    )
    assert command.ext == {"topic": "T", "queueId": "0"}
    assert command.language == "FOO"
    assert (command.flag, command.version) == (0, 0)


@pytest.mark.spec("remoting.10.7")
def test_what_is_written_has_only_string_ext_values_and_no_null() -> None:
    text = encode_json_header(Command(code=0, flag=1, opaque=7, ext={"offset": "5"}, version=513))
    members = json.loads(text)
    assert members == {
        "code": 0,
        "extFields": {"offset": "5"},
        "flag": 1,
        "language": "JAVA",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    assert list(members) == sorted(members)
    assert b" " not in text
    assert b"null" not in text


def test_ext_values_become_text_as_in_java() -> None:
    command = decode_json_header(
        b'{"code":"34","opaque":"-5","flag":null,"extFields":'
        b'{"n":1.0E10,"t":true,"f":false,"o":{"a":[1]},"z":null,"d":1.5,"i":-3}}'
    )
    assert (command.code, command.opaque, command.flag) == (34, -5, 0)
    assert command.ext == {
        "n": "1.0E10",
        "t": "true",
        "f": "false",
        "o": '{"a":[1]}',
        "d": "1.5",
        "i": "-3",
    }


def test_language_as_ordinal_and_missing() -> None:
    assert decode_json_header(b'{"code":1,"language":9}').language == 9
    assert decode_json_header(b'{"code":1}').language == "JAVA"
    assert decode_json_header(b'{"code":1,"language":null}').language is None
    assert decode_json_header(b'{"code":1,"language":{"x":1}}').language is None


def test_unknown_members_cannot_reach_our_own_fields() -> None:
    command = decode_json_header(b'{"code":1,"(body)":"aGk=","(serialize_type)":9,"zone":[1]}')
    assert command.body is None
    assert command.serialize_type == 0
    assert command.ext_entries is None
    assert decode_json_header(b'{"code":1,"(body)":17}').body is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(rb"a\ud800b", "a?b", id="a high half"),
        pytest.param(rb"\uDC00", "?", id="a low half"),
        pytest.param(rb"\ude00\ud83d", "??", id="halves in the wrong order"),
        pytest.param(rb"\ud83d\ud83d\ude00", "?\U0001f600", id="a half before a pair"),
        pytest.param(rb"\ud83d\ude00 \\ud800 \ud800", "\U0001f600 \\ud800 ?", id="no escape"),
        pytest.param(b"\xed\xa0\x80x", "?x", id="encoded as three bytes"),
    ],
)
def test_half_of_a_surrogate_pair_reads_as_the_question_mark_that_java_would_write(
    text: bytes, expected: str
) -> None:
    command = decode_json_header(
        b'{"code":105,"extFields":{"'
        + text
        + b'":"'
        + text
        + b'"},"opaque":7,"remark":"%b"}' % text
    )
    assert command.ext == {expected: expected}
    assert (command.code, command.opaque, command.remark) == (105, 7, expected)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[1]",
        b'{"code":1',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":true}',
        b'{"code":99999999999}',
        b'{"opaque":2147483648}',
        b'{"code":1,"extFields":7}',
        b'{"code":1,"remark":"\\ud800}',
        b'{"code":1,"remark":"\\ud8',
        b'{"code":1,"remark":"\\',
        b'{"code":1,"remark":"\xed\xa0',
        b'{"code":"' + b"1" * 5000 + b'"}',
        b'{"code":1,"extFields":' + b'{"a":' * 100_000,
    ],
)
def test_garbage_is_one_typed_error(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_json_header(header)


def test_text_that_is_not_utf8_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_json_header(Command(code=1, remark="\ud800"))


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    command = decode_json_header(b'{"code":1,"extFields":{"a":"\xff"},"remark":"\xc3("}')
    assert command.ext == {"a": "\ufffd"}
    assert command.remark == "\ufffd("

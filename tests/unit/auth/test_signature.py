"""The signature scheme: the published vectors, and what must not pass."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.auth.signature import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    add_signature,
    sign,
    signed_content,
    verify,
)
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.header_json import decode_json_header
from skylark.wire.headers.route import GetRouteInfoRequestHeader

SECRET = "12345678"
FRAMES = Path(__file__).parents[2] / "golden" / "data" / "frames"

VECTORS = [
    (
        {"AccessKey": "rocketmq2", "topic": "TopicTest"},
        None,
        b"rocketmq2TopicTest",
        "GeeGoP9mRvDhoVp4PD5omX0prgE=",
    ),
    (
        {"AccessKey": "rocketmq2", "SecurityToken": "tok", "a": "pg", "b": "TopicTest", "e": "0"},
        b"hello",
        b"rocketmq2tokpgTopicTest0hello",
        "au06J8lEXjIPn9vlg1MfEEjJf88=",
    ),
]


@pytest.mark.spec("remoting.10.15")
@pytest.mark.parametrize(("ext", "body", "content", "signature"), VECTORS)
def test_vectors(ext: dict[str, str], body: bytes | None, content: bytes, signature: str) -> None:
    assert signed_content(ext, body) == content
    assert sign(ext, body, SECRET) == signature
    assert verify({**ext, SIGNATURE: signature}, body, SECRET, version=CURRENT_VERSION)


def test_order_of_entries_and_present_signature_do_not_matter() -> None:
    ext, body, content, _ = VECTORS[1]
    shuffled = {SIGNATURE: "whatever", **dict(reversed(ext.items()))}
    assert signed_content(shuffled, body) == content


def test_keys_are_ordered_as_java_orders_them() -> None:
    # U+1F600 is a surrogate pair (D83D DE00) in Java and so comes before U+FF01.
    assert signed_content({"\uff01": "1", "\U0001f600": "2"}, None) == b"21"
    assert signed_content({"b": "1", "B": "2", "a": "3"}, None) == b"231"


def test_values_are_signed_as_utf8() -> None:
    assert signed_content({"topic": "\u4e3b\u9898"}, None) == "\u4e3b\u9898".encode()
    assert signed_content({"topic": "\ud800"}, None) == b"?"
    assert signed_content(None, None) == b""


@pytest.mark.spec("remoting.10.15")
def test_one_flipped_body_byte_fails() -> None:
    ext, body, _, signature = VECTORS[1]
    assert body is not None
    signed = {**ext, SIGNATURE: signature}
    for position in range(len(body)):
        flipped = bytearray(body)
        flipped[position] ^= 1
        assert not verify(signed, bytes(flipped), SECRET, version=CURRENT_VERSION)


@pytest.mark.spec("remoting.10.15")
def test_unknown_entries_are_part_of_what_is_signed() -> None:
    ext = {"AccessKey": "rocketmq2", "topic": "T", "zzz": "new"}
    signed = {**ext, SIGNATURE: sign(ext, None, SECRET)}
    assert verify(signed, None, SECRET, version=CURRENT_VERSION)
    assert not verify({**signed, "later": "x"}, None, SECRET, version=CURRENT_VERSION)


@pytest.mark.spec("remoting.10.15")
def test_unique_key_query_is_unsigned_up_to_version_399() -> None:
    ext = {"AccessKey": "rocketmq2", "topic": "T", "key": "k"}
    received = {**ext, SIGNATURE: sign(ext, None, SECRET), "_UNIQUE_KEY_QUERY": "true"}
    assert verify(received, None, SECRET, version=399)
    assert not verify(received, None, SECRET, version=401)


@pytest.mark.parametrize("given", ["", "x", "GeeGoP9mRvDhoVp4PD5omX0prgE", "\u4e3b", "\ud800"])
def test_a_wrong_signature_is_refused(given: str) -> None:
    ext = {**VECTORS[0][0], SIGNATURE: given}
    assert not verify(ext, None, SECRET, version=CURRENT_VERSION)


def test_an_unsigned_request_is_refused() -> None:
    assert not verify(None, b"hello", SECRET, version=CURRENT_VERSION)
    assert not verify({}, None, SECRET, version=CURRENT_VERSION)
    assert not verify({"AccessKey": "rocketmq2"}, None, SECRET, version=CURRENT_VERSION)


def test_another_key_is_refused() -> None:
    ext, body, _, signature = VECTORS[1]
    assert not verify({**ext, SIGNATURE: signature}, body, "87654321", version=CURRENT_VERSION)


def test_add_signature_signs_in_place() -> None:
    header = GetRouteInfoRequestHeader(topic="TopicTest")
    command = Command(
        code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
        ext=encode_ext(header),
        ext_entries=[("topic", "TopicTest")],
    )
    add_signature(command, Credentials(access_key="rocketmq2", secret_key=SECRET))
    assert command.ext == {
        "topic": "TopicTest",
        "AccessKey": "rocketmq2",
        "Signature": "GeeGoP9mRvDhoVp4PD5omX0prgE=",
    }
    assert command.ext_entries is None


def test_add_signature_with_token_and_body_and_again() -> None:
    ext, body, _, signature = VECTORS[1]
    header = {name: ext[name] for name in ("a", "b", "e")}
    command = Command(ext=header, body=body)
    credentials = Credentials(access_key="rocketmq2", secret_key=SECRET, security_token="tok")
    for _ in range(2):  # a resent request is signed again
        add_signature(command, credentials)
        assert command.ext == {**ext, SIGNATURE: signature}
    assert header == {"a": "pg", "b": "TopicTest", "e": "0"}


def test_credentials_do_not_show_the_secret() -> None:
    credentials = Credentials(access_key="ak", secret_key="geheim", security_token="marke")
    assert repr(credentials) == "Credentials(access_key='ak')"


def signed_frames() -> Iterator[tuple[str, Command]]:
    for file in sorted(FRAMES.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if (record.get("header") or {}).get("extFields", {}).get(SIGNATURE) is None:
                continue
            raw = base64.b64decode(record["raw"])
            header_size = int.from_bytes(raw[5:8], "big")
            command = decode_json_header(raw[8 : 8 + header_size])
            command.body = raw[8 + header_size :]
            yield file.stem, command


def test_recorded_requests_verify() -> None:
    """Every signed frame of the Java client and of mqadmin; both used the same stock key."""
    checked: dict[str, int] = {}
    for name, command in signed_frames():
        assert command.ext is not None
        assert command.ext[ACCESS_KEY] == "rocketmq2"
        assert verify(command.ext, command.body, SECRET, version=command.version), name
        assert not verify(command.ext, command.body, "1", version=command.version)
        checked[name] = checked.get(name, 0) + 1
    assert checked["send-acl-signed"] == 6
    assert set(checked) == {"send-acl-signed"} | {f.stem for f in FRAMES.glob("admin-*.jsonl")}

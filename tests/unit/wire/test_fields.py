"""Custom headers: declarations to text and back, by Java's rules."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from skylark.core.errors import HeaderFieldError
from skylark.wire.fields import (
    Header,
    Int32,
    Int64,
    decode_ext,
    encode_ext,
    header_fields,
)


class Sample(Header, rename="camel"):
    consumer_group: str
    queue_id: Int32
    commit_offset: Int64 | None = None
    is_force: bool = False
    ratio: float | None = None
    odd_one: str | None = msgspec.field(default=None, name="oddOen")


class Strict(Header, rename="camel"):
    strict_numbers: ClassVar[bool] = True
    queue_id: Int32
    times: Int32 | None = None


def test_round_trip_with_wire_names() -> None:
    header = Sample(consumer_group="g", queue_id=-1, commit_offset=2**40, is_force=True, ratio=0.5)
    ext = encode_ext(header)
    assert ext == {
        "consumerGroup": "g",
        "queueId": "-1",
        "commitOffset": "1099511627776",
        "isForce": "true",
        "ratio": "0.5",
    }
    assert decode_ext(Sample, ext) == header


def test_defaults_and_unknown_entries() -> None:
    header = decode_ext(Sample, {"consumerGroup": "", "queueId": "+07", "unknown": "x"})
    assert header == Sample(consumer_group="", queue_id=7)
    assert encode_ext(header) == {"consumerGroup": "", "queueId": "7", "isForce": "false"}


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", False), ("yes", False), ("", False)]
)
def test_only_the_word_true_is_true(text: str, value: bool) -> None:
    header = decode_ext(Sample, {"consumerGroup": "g", "queueId": "0", "isForce": text})
    assert header.is_force is value


@pytest.mark.parametrize("ext", [None, {}, {"queueId": "1"}])
def test_a_missing_required_field_is_named(ext: dict[str, str] | None) -> None:
    with pytest.raises(HeaderFieldError, match="the custom field <consumerGroup> is null"):
        decode_ext(Sample, ext)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "x", "2147483648", "--1", "9" * 5000])
def test_malformed_numbers(text: str) -> None:
    with pytest.raises(HeaderFieldError) as required:
        decode_ext(Sample, {"consumerGroup": "g", "queueId": text})
    assert required.value.field == "queueId"
    ext = {"consumerGroup": "g", "queueId": "1", "commitOffset": text}
    if text != "2147483648":
        assert decode_ext(Sample, ext).commit_offset is None
    with pytest.raises(HeaderFieldError, match="not a number"):
        decode_ext(Strict, {"queueId": "1", "times": text})


def test_a_wrong_declaration_fails_at_first_use() -> None:
    class Wrong(Header):
        numbers: list[int]

    with pytest.raises(TypeError, match=r"Wrong\.numbers"):
        header_fields(Wrong)

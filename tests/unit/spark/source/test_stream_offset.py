"""Offsets of a stream in the checkpoint."""

from __future__ import annotations

import json

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.source.stream_offset import (
    QueueIdentity,
    StreamOffset,
    decode_offset,
    encode_offset,
)
from skylark.wire.bodies.common_body import MessageQueue


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_the_text_of_an_offset_is_stable() -> None:
    one = {queue(10): 1, queue(2): 7, queue(0, broker="b"): 3, queue(0, topic="A"): 4}
    other = dict(reversed(one.items()))
    text = json.dumps(encode_offset(StreamOffset(one)))
    assert text == json.dumps(encode_offset(StreamOffset(other)))
    assert text == (
        '{"v": 1, "q": {"A": {"broker-a": {"0": 4}},'
        ' "T": {"b": {"0": 3}, "broker-a": {"2": 7, "10": 1}}}}'
    )


def test_marks_of_the_first_batch() -> None:
    start = {queue(0): 5}
    offset = StreamOffset({queue(0): 9}, first_start=start)
    assert decode_offset(json.loads(json.dumps(encode_offset(offset)))) == offset
    fresh = StreamOffset(start, fresh=True)
    assert encode_offset(fresh) == {"v": 1, "q": {"T": {"broker-a": {"0": 5}}}, "fresh": True}
    assert decode_offset(encode_offset(fresh)) == fresh


def test_identities_of_queues() -> None:
    offset = StreamOffset({queue(0): 9, queue(10): 3}, identities={queue(10): QueueIdentity(4, 77)})
    text = json.dumps(encode_offset(offset))
    assert text.endswith(', "i": {"T": {"broker-a": {"10": [4, 77]}}}}')
    assert decode_offset(json.loads(text)) == offset


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="offsets of version 2, this source knows 1"):
        decode_offset({"v": 2, "q": {}})


@pytest.mark.parametrize(
    "wrong",
    [{}, {"v": 1}, {"v": 1, "q": 3}, {"v": 1, "q": {"T": {"b": {"x": 1}}}}, [], {"index": 3},
     {"v": 1, "q": {"T": {"b": {"0": -1}}}}, {"v": 1, "q": {}, "i": {"T": {"b": {"0": 3}}}}],
)  # fmt: skip
def test_offsets_of_others_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="an offset of another source"):
        decode_offset(wrong)

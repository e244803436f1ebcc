"""Batch bodies."""

from __future__ import annotations

import struct

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.batch import Batch, BatchMessage, encode_batch, split_batch

X1 = BatchMessage(b"x1", b"TAGS\x01A\x02")
X1_BYTES = bytes.fromhex("0000001f000000000000000000000000000000027831000754414753014102")


@pytest.mark.spec("store.12.12")
def test_one_message_of_a_batch() -> None:
    assert encode_batch([X1]) == X1_BYTES
    assert list(split_batch(X1_BYTES)) == [X1]


@pytest.mark.spec("store.12.12")
def test_three_messages_follow_each_other() -> None:
    messages = [
        X1,
        BatchMessage(b"", b"", -2),
        BatchMessage(bytes(3000), b"a\x01b\x02", 0x12345678),
    ]
    encoded = encode_batch(messages)
    assert len(encoded) == 31 + 22 + 3026
    assert encoded.startswith(X1_BYTES)
    assert list(split_batch(encoded)) == messages


def test_an_empty_body_is_an_empty_batch() -> None:
    assert encode_batch([]) == b""
    assert list(split_batch(b"")) == []


def test_magic_and_checksum_of_the_parts_are_ignored() -> None:
    changed = X1_BYTES[:4] + b"\xff" * 8 + X1_BYTES[12:]
    assert list(split_batch(changed)) == [X1]


def patched(position: int, layout: str, value: int) -> bytes:
    raw = bytearray(X1_BYTES)
    struct.pack_into(layout, raw, position, value)
    return bytes(raw)


@pytest.mark.parametrize(
    "body",
    [
        *[X1_BYTES[:size] for size in range(1, 31)],
        X1_BYTES + b"\x00",
        patched(0, ">i", 30),
        patched(0, ">i", 32),
        patched(0, ">i", -1),
        patched(0, ">i", 0),
        patched(0, ">i", 0x7FFF_FFFF),
        patched(16, ">i", -1),
        # Backwards, to where the flag reads as the right property length.
        X1_BYTES[:12] + struct.pack(">ii", 17 << 16, -8) + X1_BYTES[20:],
        patched(16, ">i", 0x7FFF_FFFF),
        patched(16, ">i", 3),
        patched(22, ">h", -1),
        patched(22, ">h", 6),
        patched(22, ">h", 0x7FFF),
    ],
)
def test_bodies_that_are_not_a_batch_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        split_batch(body)


def walked(body: bytes) -> list[BatchMessage] | None:
    """The messages of a batch, decoded one after the other; None if it is not a batch."""
    messages, position = [], 0
    while position < len(body):
        rest = body[position:]
        if len(rest) < 22:
            return None
        size, _, _, flag, body_size = struct.unpack_from(">iiiii", rest)
        if not 0 <= body_size <= size - 22 or size > len(rest):
            return None
        (properties_size,) = struct.unpack_from(">h", rest, 20 + body_size)
        if 22 + body_size + properties_size != size:
            return None
        messages.append(BatchMessage(rest[20 : 20 + body_size], rest[22 + body_size : size], flag))
        position += size
    return messages


@pytest.mark.parametrize("value", [0, 1, 0x1F, 0x3E, 0x7F, 0xFF])
def test_messages_of_one_size_are_read_as_any_others(value: int) -> None:
    """Each byte of a batch of equal messages is changed in turn."""
    batch = encode_batch([X1, BatchMessage(b"x2", b"TAGS\x01B\x02", 7), X1, X1])
    assert walked(batch) == list(split_batch(batch))
    for position in range(len(batch)):
        changed = batch[:position] + bytes([value]) + batch[position + 1 :]
        expected = walked(changed)
        if expected is not None:
            found = split_batch(changed)
            assert list(found) == expected
            assert list(found.sizes) == [len(it.body) + len(it.properties) for it in expected]
            kinds = {(len(it.body), len(it.properties)) for it in expected}
            assert found.is_alike == (len(kinds) == 1)
        else:
            with pytest.raises(RemoteProtocolError):
                split_batch(changed)


@pytest.mark.parametrize(
    ("messages", "is_alike"),
    [
        ([], True),
        ([X1], True),
        ([X1, BatchMessage(b"yy", b"TAGS\x01B\x02", 7, 70)], True),
        ([X1, BatchMessage(b"y", b"TAGS\x01B\x02")], False),
        ([X1, BatchMessage(b"yy", b"TAGS\x01BB\x02")], False),
        ([X1, BatchMessage(b"y", b"TAGS\x01BB\x02")], False),  # in sum as long
    ],
)
def test_columns_and_messages(messages: list[BatchMessage], is_alike: bool) -> None:
    batch = Batch.of(messages)
    assert list(batch) == messages
    assert len(batch) == len(messages)
    assert batch.sizes == [len(it.body) + len(it.properties) for it in messages]
    assert batch.is_alike == is_alike


def test_other_properties() -> None:
    batch = Batch.of([X1, BatchMessage(b"x2", b"TAGS\x01B\x02", 7, 70)])
    assert batch.is_alike
    other = batch.with_properties([b"", b"k\x01v\x02"])
    assert list(other) == [BatchMessage(b"x1"), BatchMessage(b"x2", b"k\x01v\x02", 7, 70)]
    assert (other.sizes, other.is_alike) == ([2, 6], False)


def test_limits() -> None:
    three = encode_batch([X1] * 3)
    assert len(split_batch(three, size_max=93, count_max=3)) == 3
    with pytest.raises(RemoteProtocolError, match="93 bytes exceeds 92"):
        split_batch(three, size_max=92)
    with pytest.raises(RemoteProtocolError, match="more than 2 messages"):
        split_batch(three, count_max=2)


def test_properties_that_do_not_fit_are_our_own_error() -> None:
    batch = split_batch(encode_batch([BatchMessage(b"", bytes(32767))]))
    assert batch.properties == [bytes(32767)]
    with pytest.raises(LocalProtocolError, match="32768 bytes exceed 32767"):
        encode_batch([BatchMessage(b"", bytes(32768))])

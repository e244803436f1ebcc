"""The replication stream, in whole and in pieces."""

from __future__ import annotations

import pytest

from skylark.core.errors import RemoteProtocolError
from skylark.wire.ha_frame import (
    HaFrame,
    HaFrameBuffer,
    ReportBuffer,
    encode_frame_head,
    encode_report,
)


def test_reports_are_eight_bytes() -> None:
    assert encode_report(0) == bytes(8)
    assert encode_report(115).hex() == "0000000000000073"


@pytest.mark.spec("store.12.43")
def test_of_two_reports_in_one_segment_the_last_counts() -> None:
    assert ReportBuffer().feed(encode_report(115) + encode_report(230)) == 230


@pytest.mark.spec("store.12.43")
def test_a_report_split_in_three_and_five_bytes() -> None:
    buffer = ReportBuffer()
    report = encode_report(115)
    assert buffer.feed(report[:3]) is None
    assert buffer.feed(report[3:]) == 115


def test_values_are_aligned_to_the_stream_not_to_segments() -> None:
    buffer = ReportBuffer()
    stream = encode_report(1) + encode_report(2) + encode_report(3)
    assert buffer.feed(stream[:12]) == 1
    assert buffer.feed(stream[12:20]) == 2
    assert buffer.feed(b"") is None
    assert buffer.feed(stream[20:]) == 3


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="-1"):
        ReportBuffer().feed(encode_report(-1))


STREAM = b"".join(
    [
        encode_frame_head(0x8000_0000, 5) + b"hello",
        encode_frame_head(0x8000_0005, 0),
        encode_frame_head(0x8000_0005, 1) + b"!",
    ]
)
FRAMES = [HaFrame(0x8000_0000, b"hello"), HaFrame(0x8000_0005, b""), HaFrame(0x8000_0005, b"!")]


def test_frames() -> None:
    assert STREAM[:12].hex() == "000000008000000000000005"
    assert HaFrameBuffer().feed(STREAM) == FRAMES


@pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 12, 13, 17, 41])
def test_any_split_gives_the_same_frames(size: int) -> None:
    buffer = HaFrameBuffer()
    frames = []
    for start in range(0, len(STREAM), size):
        frames += buffer.feed(STREAM[start : start + size])
    assert frames == FRAMES
    assert buffer.pending_size == 0


def test_pending_bytes_are_counted() -> None:
    buffer = HaFrameBuffer()
    assert buffer.feed(STREAM[:20]) == FRAMES[:1]
    assert buffer.pending_size == 3


@pytest.mark.parametrize(
    ("log_offset", "body_size"), [(0, -1), (0, 101), (0, 0x7FFF_FFFF), (-1, 0), (-1, 5)]
)
def test_an_impossible_head_is_refused_before_its_body_comes(
    log_offset: int, body_size: int
) -> None:
    buffer = HaFrameBuffer(body_size_max=100)
    assert buffer.feed(encode_frame_head(7, 100) + bytes(100)) == [HaFrame(7, bytes(100))]
    with pytest.raises(RemoteProtocolError, match="a master sends"):
        buffer.feed(encode_frame_head(log_offset, body_size))

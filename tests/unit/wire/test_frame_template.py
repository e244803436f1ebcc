"""Frames of which most is encoded once."""

from __future__ import annotations

import pytest

from skylark.core.errors import LocalProtocolError
from skylark.wire.command import Command, response_to
from skylark.wire.frame import FRAME_SIZE_MAX, decode_frame, encode_frame
from skylark.wire.frame_template import FrameTemplate


def answer(opaque: int, offset: str, key: str, body: bytes | None = None) -> Command:
    ext = {"region": "<offset> 100 %d <key>", "offset": offset, "key": key}
    return response_to(Command(opaque=opaque), 0, "100 %", ext=ext, body=body)


@pytest.mark.parametrize("body", [None, b"body %d"])
@pytest.mark.parametrize("opaque", [0, 1 << 30, (1 << 31) - 1, -1])
def test_a_frame_is_what_would_be_encoded(opaque: int, body: bytes | None) -> None:
    template = FrameTemplate(answer(0, "<offset>", "<key>"), {"<offset>": "%d", "<key>": "%b"})
    frame = template.frame((1 << 62, b"K1", opaque), body or b"")
    assert frame == encode_frame(answer(opaque, str(1 << 62), "K1", body))
    assert decode_frame(frame).body == body
    assert template.frame((1 << 62, b"K1", opaque), memoryview(body or b"")) == frame


def test_marks_must_be_there_and_in_order() -> None:
    with pytest.raises(ValueError, match="<nothing> is not in"):
        FrameTemplate(answer(0, "<offset>", "<key>"), {"<nothing>": "%d"})
    example = answer(0, "<offset>", "<key>")
    example.ext = {"offset": "<offset>", "key": "<key>"}
    with pytest.raises(ValueError, match="<key> is not in"):
        FrameTemplate(example, {"<key>": "%b", "<offset>": "%d"})


def test_a_frame_has_its_limit() -> None:
    template = FrameTemplate(answer(0, "<offset>", "x"), {"<offset>": "%d"})
    room = FRAME_SIZE_MAX - len(template.frame((1, 2)))
    assert len(template.frame((1, 2), bytes(room))) == FRAME_SIZE_MAX
    with pytest.raises(LocalProtocolError, match="exceeds"):
        template.frame((1, 2), bytes(room + 1))

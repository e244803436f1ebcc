"""Every frame recorded from a real RocketMQ 5.5.0 decodes, and encodes back to the same bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from skylark.wire.frame import FrameBuffer, decode_frame, encode_frame

FRAMES = Path(__file__).parent / "data" / "frames"
SCENARIOS = sorted(path.stem for path in FRAMES.glob("*.jsonl") if path.stem != "ha-stream")


def recorded(scenario: str) -> list[dict[str, Any]]:
    lines = (FRAMES / f"{scenario}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_all_scenarios_are_here() -> None:
    assert len(SCENARIOS) == 55
    assert sum(len(recorded(scenario)) for scenario in SCENARIOS) == 1932


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_decodes_to_what_was_recorded_and_encodes_byte_equal(scenario: str) -> None:
    for line in recorded(scenario):
        raw = base64.b64decode(line["raw"])
        command = decode_frame(raw)
        assert command.code == line["code"]
        assert command.opaque == line["opaque"]
        assert command.flag == line["flag"]
        assert command.is_response == line["response"]
        assert command.is_oneway == line["oneway"]
        assert len(command.body or b"") == line["body_len"]
        assert command.serialize_type == ("JSON", "ROCKETMQ").index(line["serialize"])
        if line["header"] is not None:
            assert command.ext == line["header"].get("extFields")
            assert command.remark == line["header"].get("remark")
            assert command.language == line["header"]["language"]
            assert command.version == line["header"]["version"]
        assert encode_frame(command) == raw


@pytest.mark.parametrize("chunk_size", [1, 7, 1000, 65536])
def test_the_stream_of_a_connection_in_chunks(chunk_size: int) -> None:
    lines = recorded("push-consumer") + recorded("binary-both-sides")
    raws = [base64.b64decode(line["raw"]) for line in lines]
    stream = b"".join(raws)
    buffer = FrameBuffer()
    commands = []
    for position in range(0, len(stream), chunk_size):
        commands += buffer.feed(stream[position : position + chunk_size])
    assert [encode_frame(command) for command in commands] == raws
    assert buffer.pending_size == 0

"""Seeded damage to recorded frames, and the check that it raises one typed error or none.

``mutated_frames(seed, count)`` yields recorded frames of a real RocketMQ: some with bytes flipped,
removed, inserted, lengths falsified, frames spliced together; others sound as frames, but with
fields falsified, dropped or added, another code, a damaged body. ``swallow`` decodes one as far as
a server would: frame, header, custom header of its code, body. Anything but ``RemoteProtocolError``
escapes and fails the test that called it.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from skylark.core.errors import RemoteProtocolError
from skylark.wire.catalogue import CATALOGUE, lookup
from skylark.wire.command import SERIALIZE_JSON, Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import decode_ext
from skylark.wire.frame import FrameBuffer, decode_frame, encode_frame

FRAMES = Path(__file__).parents[1] / "golden" / "data" / "frames"

INTERESTING_INTS = (0, 1, -1, 4, 21, 127, 128, 32767, 65535, 2**24 - 1, 2**24, 2**31 - 1, -(2**31))
INTERESTING_BYTES = (b"\0", b"\xff", b"\x01", b"\x02", b"{", b"}", b'"', b"[", b"\\", b"\x16", b"9")
INTERESTING_TEXTS = (
    "0", "-1", "1", "true", "TRUE", "null", "{}", "[", '{"a":', " ", "%RETRY%", "*", "a" * 300,
    "9" * 30, "2147483648", "-9223372036854775808", "1.5", "\x01\x02", "\u4e2d\U0001f600", "\ufffd",
    "topic", "brokerName", "brokerId", "clusterName", "127.0.0.1:1", "::1", "compressed",
)  # fmt: skip
CODES = tuple(CATALOGUE)


@cache
def recorded_frames() -> tuple[bytes, ...]:
    frames = []
    for path in sorted(FRAMES.glob("*.jsonl")):
        if path.stem != "ha-stream":
            lines = path.read_text().splitlines()
            frames += [base64.b64decode(json.loads(line)["raw"]) for line in lines]
    return tuple(frames)


def mutated_frames(seed: int, count: int) -> Iterator[bytes]:
    """``count`` damaged frames, the same ones for the same seed."""
    rng = random.Random(seed)
    frames = recorded_frames()
    for _ in range(count):
        if rng.random() < 0.4:
            yield _falsified(rng.choice(frames), rng)
            continue
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            _damage(frame, rng, frames)
        if rng.random() < 0.5:
            _repair_length(frame)
        yield bytes(frame)


def _falsified(frame: bytes, rng: random.Random) -> bytes:
    """A sound frame whose content lies."""
    command = decode_frame(frame)
    command.ext_entries = None
    if rng.random() < 0.2:
        command.code = rng.choice(CODES)
        command.serialize_type = SERIALIZE_JSON  # the only form that carries every code
    if rng.random() < 0.1:
        command.version = rng.choice((0, 36, 37, 317, 400, 401, 475, 32767))
    ext = dict(command.ext or {})
    names = list(ext)
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.randrange(4)
        if kind == 0 and names:
            ext.pop(rng.choice(names), None)
        elif kind == 1:
            ext[rng.choice(INTERESTING_TEXTS)] = rng.choice(INTERESTING_TEXTS)
        elif names:
            ext[rng.choice(names)] = rng.choice(INTERESTING_TEXTS)
    command.ext = ext
    if command.body and rng.random() < 0.5:
        body = bytearray(command.body)
        _damage(body, rng, (bytes(body),))
        command.body = bytes(body)
    return encode_frame(command)


def _damage(frame: bytearray, rng: random.Random, frames: tuple[bytes, ...]) -> None:
    position = rng.randrange(len(frame)) if frame else 0
    kind = rng.randrange(6)
    if kind == 0 and frame:
        frame[position] ^= 1 << rng.randrange(8)
    elif kind == 1 and frame:
        frame[position : position + 1] = rng.choice(INTERESTING_BYTES)
    elif kind == 2:
        del frame[position : position + rng.choice((1, 2, 8, 100))]
    elif kind == 3:
        frame[position:position] = rng.randbytes(rng.choice((1, 2, 8, 100)))
    elif kind == 4 and len(frame) >= 4:
        position = rng.choice((0, 4, rng.randrange(len(frame) - 3)))
        frame[position : position + 4] = struct.pack(">i", rng.choice(INTERESTING_INTS))
    else:
        other = rng.choice(frames)
        cut = rng.randrange(len(other))
        frame[position:] = other[cut:]


def _repair_length(frame: bytearray) -> None:
    """Make the frame whole again, so that the damage reaches header and body."""
    if len(frame) >= 8:
        struct.pack_into(">i", frame, 0, len(frame) - 4)


def swallow(frame: bytes) -> tuple[int, int]:
    """Decode ``frame`` as a server would; returns (commands decoded, typed errors seen)."""
    buffer = FrameBuffer()
    commands = buffer.feed(frame)
    errors = int(buffer.error is not None)
    for command in commands:
        errors += swallow_command(command)
        encode_frame(command)
    return len(commands), errors


def swallow_command(command: Command) -> int:
    """Decode custom header and body of one request; returns the number of typed errors."""
    row = lookup(command.code)
    if row is None or command.is_response:
        return 0
    errors = 0
    if row.request_header is not None:
        try:
            decode_ext(row.request_header, command.ext)
        except RemoteProtocolError:
            errors += 1
    if row.request_body_type is not None and command.body:
        try:
            decode_body(row.request_body_type, command.body)
        except RemoteProtocolError:
            errors += 1
    return errors

r"""The recorded frames, and the bytes that a row replays.

A frame is replayed as the Java client wrote it, member by member in its order, except for what has
to differ from one request to the next: ``opaque``, topic, queue and offsets, the key, and the
counter at the end of ``UNIQ_KEY``. Properties are in field ``i`` of a send, where ``\u0001`` and
``\u0002`` separate them; clients before 5.2 end them without the last separator.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.path_load.connection import join_frame

FOLDER: Final = Path(__file__).parent / "frames"
CURRENT: Final = "5.5.0"
#: Clients whose property strings end without the last separator.
OLDER: Final = ("5.1.4", "4.9.8")

KEY: Final = re.compile(rb"order-\d{5}")
#: The end of a unique key: time (4 bytes) and counter (2 bytes). The escape before one is no digit.
KEY_COUNTER: Final = re.compile(rb"(?<=[0-9A-F]{20})[0-9A-F]{12}(?![0-9A-F])")


@dataclass(frozen=True)
class Recorded:
    """One frame of a client."""

    header: bytes
    body: bytes

    @property
    def fields(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.header)["extFields"]
        return found

    def frame(self, number: int, **fields: str | int) -> bytes:
        """The frame as request ``number``, with other header fields."""
        header = renumbered(self.header, number)
        header = re.sub(rb'"opaque":\d+', b'"opaque":%d' % number, header)
        for name, value in fields.items():
            pattern = _member(name)
            header = pattern.sub(b'"%s":"%s"' % (name.encode(), str(value).encode()), header)
        return join_frame(header, self.body)

    def batch(self, number: int, size: int, **fields: str | int) -> bytes:
        """The same, with keys of their own for the ``size`` messages in the body."""
        numbers = iter(range(number * size, number * size + size))
        body = KEY_COUNTER.sub(lambda _: b"%012X" % next(numbers), self.body)
        return Recorded(self.header, body).frame(number, **fields)

    def with_topic(self, old: str, new: str) -> Recorded:
        """The same with another topic, wherever it is named."""
        names = old.encode(), new.encode()
        return Recorded(self.header.replace(*names), self.body.replace(*names))


@functools.cache
def _member(name: str) -> re.Pattern[bytes]:
    return re.compile(rb'"%s":"[^"]*"' % name.encode())


def renumbered(header: bytes, number: int) -> bytes:
    """The header with the key and the unique key of message ``number``, no byte longer."""
    header = KEY.sub(b"order-%05d" % (number % 100_000), header)
    return KEY_COUNTER.sub(b"%012X" % number, header)


def unique_key(header: bytes) -> str:
    """The ``UNIQ_KEY`` of a send."""
    found = re.search(rb"UNIQ_KEY\\u0001([0-9A-F]+)", header)
    assert found is not None, "every client sets one"
    return found[1].decode()


@functools.cache
def load(version: str, topic: str) -> dict[str, Recorded]:
    """The frames of one release of the client, by name, for a topic."""
    files = [FOLDER / f"{version}.jsonl", FOLDER / f"{version}-pop.jsonl"]
    texts = [path.read_text() for path in files if path.exists()]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    found = {
        line["name"]: Recorded(line["header"].encode(), base64.b64decode(line["body"]))
        for line in lines
    }
    recorded_topic = found["send 100"].fields["b"]
    return {name: frame.with_topic(recorded_topic, topic) for name, frame in found.items()}

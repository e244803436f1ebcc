"""Requests that store messages as Java clients wrote them, from ``bench/path_load/frames``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.path_load.frames import load as recorded_frames
from skylark.testing.virtual_clock import START_MS
from skylark.wire.command import SERIALIZE_BINARY, Command
from skylark.wire.frame import FrameBuffer
from tests.property.send_requests import Places, Request


@dataclass(frozen=True, kw_only=True)
class JavaRequest(Request):
    """One request of one release of the client.

    The bytes are those of the client but for opaque, topic, queue, birth, key and unique id, and
    for the place that a commit names: that of the latest half message.
    """

    release: str
    name: str
    topic: str = "T"
    queue_id: int = 0

    def command(self, opaque: int, places: Places) -> Command:
        (command,) = FrameBuffer().feed(self._recorded(opaque, places))
        command.serialize_type = SERIALIZE_BINARY
        return command

    def frame(self, opaque: int, places: Places) -> bytes:
        return super().frame(opaque, places) if self.is_binary else self._recorded(opaque, places)

    def _recorded(self, opaque: int, places: Places) -> bytes:
        request = recorded_frames(self.release, self.topic)[self.name]
        if self.name == "batch":
            return request.batch(opaque, JAVA_BATCH_COUNT, e=self.queue_id)
        if self.name != "commit":
            return request.frame(opaque, e=self.queue_id, g=START_MS - 1_000)
        half = places.latest_half
        assert half is not None, "no half message comes before the commit"
        return request.frame(
            opaque,
            tranStateTableOffset=half.queue_offset,
            commitLogOffset=half.log_offset,
            msgId=half.unique_id,
            transactionId=half.unique_id,
        )


#: Messages in the batch that each Java client sent.
JAVA_BATCH_COUNT: Final = 32
JAVA_RELEASES: Final = ("4.9.8", "5.1.4", "5.5.0")
#: Everything that stores a message in the recordings of Java clients, to one topic and with typed
#: ones between. A batch is larger than :data:`BODY_SIZE_MAX`.
JAVA_REQUESTS: Final[tuple[Request, ...]] = tuple(
    JavaRequest(release=release, name=name, topic=topic, queue_id=queue_id, is_binary=is_binary)
    for is_binary in (False, True)
    for release in JAVA_RELEASES
    for name, topic, queue_id in (
        ("send 100", "T", 0),
        ("send 100", "T", 0),
        ("send 1024", "T", 1),
        ("send 100", "Normal", 0),
        ("batch", "T", 0),
        ("half", "T", 2),
        ("commit", "T", 2),
        ("send 100", "T", 0),
        ("half", "Transaction", 0),
        ("half", "T", 1),
        ("commit", "T", 1),
    )
)
JAVA_SETTINGS: Final = {"maxMessageSize": "10000"}

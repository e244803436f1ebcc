"""Consumer offsets in memory, and the offset file of broadcasting consumers.

:class:`OffsetTable` is the memory. Consumed messages raise the offset of a queue; a periodic task
and the end of a queue save it. An offset can be *frozen*: after a jump (the broker does not have
the offset) messages from before the jump must not set it back. Both the loop that consumes and the
control loop use the table, therefore it has a lock.

Clustering consumers save to brokers (:mod:`skylark.client.consumer.offset_persistence`). Each
broadcasting consumer reads all messages and saves to a file, :class:`LocalOffsetFile`::

    <folder>/<client id>/<group>/offsets.json        default folder: ~/.rocketmq_offsets

in the format of Java's client, so each can continue with the file of the other. The format is like
JSON, but has objects as keys. Java 5.5.0 writes the text below; 4.9.8 has the opening brace of a
key on the line before. All releases read both, and so do we::

    {
        "offsetTable":{
                {
                        "brokerName":"broker-a",
                        "queueId":3,
                        "topic":"TopicTest"
                }:1470
        }
    }

**Crashes.** A new file is written under another name, synced, and renamed over the old one, after
the old content was copied to ``offsets.json.bak``. Readers use that copy if the file is missing,
empty or broken. A broken file is never copied over a good one.

Counterpart of Java's ``OffsetStore``, ``RemoteBrokerOffsetStore`` and ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from skylark.core.errors import ClientError, RemoteProtocolError
from skylark.wire.bodies.common_body import Body, MessageQueue
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import Int64

logger = logging.getLogger(__name__)

OFFSET_FILE: Final = "offsets.json"
OFFSET_FILE_SIZE_MAX: Final = 8 * 1024 * 1024  # about 80,000 queues


class _OffsetFile(Body, kw_only=True):
    """The content of the file."""

    dialect_size_max: ClassVar[int] = OFFSET_FILE_SIZE_MAX

    offset_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class OffsetTable:
    """Offsets in memory. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()
        self._lock = threading.Lock()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Set the offset of a queue; ignored if the queue is frozen."""
        with self._lock:
            if queue in self._frozen:
                return
            known = self._offsets.get(queue)
            if known is None or offset > known or not increase_only:
                self._offsets[queue] = offset

    def update_and_freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set ``offset`` and ignore updates until the queue is forgotten."""
        with self._lock:
            self._offsets[queue] = offset
            self._frozen.add(queue)

    def read(self, queue: MessageQueue) -> int | None:
        """The offset in memory, if there is one."""
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Remove the offset of a queue that another consumer has now."""
        with self._lock:
            self._offsets.pop(queue, None)
            self._frozen.discard(queue)

    def retain(self, queues: Collection[MessageQueue]) -> None:
        """Remove all offsets but those of ``queues``."""
        with self._lock:
            for queue in [queue for queue in self._offsets if queue not in queues]:
                del self._offsets[queue]
            self._frozen.intersection_update(queues)

    def to_save(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The offsets of ``queues`` that are to be saved."""
        with self._lock:
            return {queue: self._offsets[queue] for queue in queues if queue in self._offsets}

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """All offsets, or those of a topic."""
        with self._lock:
            return {
                queue: offset
                for queue, offset in self._offsets.items()
                if topic is None or queue.topic == topic
            }


class LocalOffsetFile:
    """The file of a broadcasting consumer. Reading and writing block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")

    def load(self) -> dict[MessageQueue, int]:
        """All offsets, from the copy if the file cannot be read; raises ClientError.

        Without either there are none. A broken copy is an error, because otherwise a group would
        start over unnoticed.
        """
        table = self._sound()
        if table is not None:
            return table
        try:
            table = _read(self._backup)
        except (OSError, RemoteProtocolError) as error:
            raise ClientError(
                f"the offsets in {self._backup} cannot be read: {error}",
                hint="restore a good copy, or delete it to start over",
            ) from error
        if table is None:
            return {}
        logger.warning("%s is missing or broken: offsets are read from %s", self.path, self._backup)
        return table

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Merge ``offsets`` into the file; raises OSError or ClientError."""
        sound = self._sound()
        merged = {**(self.load() if sound is None else sound), **offsets}
        if merged == sound:
            return
        data = encode_offsets(merged).encode("utf-8", "replace")
        if len(data) > OFFSET_FILE_SIZE_MAX:
            raise ClientError(
                f"{len(merged)} offsets do not fit into {self.path}",
                hint=f"it may have {OFFSET_FILE_SIZE_MAX} bytes; delete it to forget old queues",
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if sound is not None:
            _replace(self._backup, self.path.read_bytes())
        _replace(self.path, data)

    def _sound(self) -> dict[MessageQueue, int] | None:
        """The content of the file; None if it is missing or broken."""
        try:
            return _read(self.path)
        except (OSError, RemoteProtocolError) as error:
            logger.warning("%s is broken: %s", self.path, error)
            return None


def local_offset_path(folder: Path | None, client_id: str, group: str) -> Path:
    """The offset file of a broadcasting consumer; ``folder`` is None for the default one."""
    base = Path(folder or Path.home() / ".rocketmq_offsets")  # plain strings are accepted too
    return base / client_id / group / OFFSET_FILE


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> str:
    """The text of the file, as Java's client writes it."""
    entries = ",\n".join(
        f"\t\t{{\n"
        f'\t\t\t"brokerName":{encode_basestring(queue.broker_name)},\n'
        f'\t\t\t"queueId":{queue.queue_id},\n'
        f'\t\t\t"topic":{encode_basestring(queue.topic)}\n'
        f"\t\t}}:{offset}"
        for queue, offset in offsets.items()
    )
    table = f"{{\n{entries}\n\t}}" if entries else "{}"
    return f'{{\n\t"offsetTable":{table}\n}}'


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """The offsets in a file of any Java release; raises RemoteProtocolError."""
    return decode_body(_OffsetFile, data, size_max=OFFSET_FILE_SIZE_MAX).offset_table


def _read(path: Path) -> dict[MessageQueue, int] | None:
    """The offsets in a file; None if it is missing or empty."""
    try:
        with path.open("rb") as file:
            data = file.read(OFFSET_FILE_SIZE_MAX + 1)
    except FileNotFoundError:
        return None
    return decode_offsets(data) if data.strip() else None


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new content, never a part."""
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)

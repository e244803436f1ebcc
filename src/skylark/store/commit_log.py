"""The commit log: the messages of all topics in order of arrival, and the only source of truth.

Files of equal size, named by the log offset of their first byte; a record never crosses a file. A
record is written only where eight more bytes would fit, so that a blank record (its size and the
blank magic) can always close the file. The records of a batch stay together in one file.

An append is one pass: the fixed head and two slices go straight into the mapped file, with queue
offset and log offset. Readers see nothing before ``file.wrote`` advances, which is the last step.

What a crash leaves at each line of :meth:`CommitLog.append`:

* before ``wrote`` advances, kill -9: part of a record after the last whole one. The head is
  written last; without it recovery finds no record there and truncates. Of a batch, the size of the
  first record is written last: either all of the batch is there, or nothing;
* after a blank was written but before the next file holds a record: the file ends with the blank,
  and the next one is empty (zeros). Recovery removes it or fills it from its start;
* power loss: any set of the unsynced pages. Recovery keeps the records up to the first invalid one;
  everything before the last completed sync is among them.

Counterpart of Java's ``CommitLog`` and ``DefaultAppendMessageCallback``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from skylark.core.clock import TimeSource
from skylark.core.errors import StoreError
from skylark.store.batch_encoder import Shared, middle_of, pack_batch, places_of
from skylark.store.file_sequence import MappedFiles
from skylark.store.mapped_file import Lease, MappedFile, RangeNotReadableError
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.batch import Batch
from skylark.wire.layout import (
    BLANK_RECORD,
    BLANK_SIZE_MIN,
    FLAG_BORN_HOST_V6,
    FLAG_HOSTS_V6_MASK,
    FLAG_STORE_HOST_V6,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    RECORD_HEADS,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    TOPIC_SIZE_V1_MAX,
    TOTAL_SIZE,
)
from skylark.wire.message import reserve_property_crc, seal_property_crc

_pack_properties_length = PROPERTIES_LENGTH.pack
_pack_head_v4_into = RECORD_HEADS[0].pack_into
_HEAD_V4_SIZE: Final = RECORD_HEADS[0].size
_PUT_OK: Final = PutStatus.PUT_OK


class TopicField(msgspec.Struct, frozen=True, gc=False):
    """A topic as records store it: encoded once per queue, repeated in every record."""

    magic: int
    field: bytes  # length and name


def topic_field(topic: str) -> TopicField:
    """Length in one byte for up to 127 bytes, in two for more (records of version 2)."""
    name = topic.encode()
    if len(name) <= TOPIC_SIZE_V1_MAX:
        return TopicField(MAGIC_V1, TOPIC_LENGTH_V1.pack(len(name)) + name)
    return TopicField(MAGIC_V2, TOPIC_LENGTH_V2.pack(len(name)) + name)


class PutLimits(enum.Enum):
    """Which limits a message must keep when it is put."""

    #: Client messages: ``maxMessageSize``, short topic names, a body, room for copies.
    SETTINGS = enum.auto()
    #: Copies that the broker makes itself: only what a record and a log file can hold.
    RECORD_FORMAT_ONLY = enum.auto()


_SETTINGS: Final = PutLimits.SETTINGS


class Draft(msgspec.Struct, gc=False):
    """A message to be stored. Hooks (delay, transactions) may still change it."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""  # the raw property string
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    #: Messages that become a record each, all or none; the body is ignored then.
    batch: Batch | None = None
    #: How many messages the body holds, if it is a batch that is stored unsplit.
    inner_count: int = 0
    limits: PutLimits = _SETTINGS


class CommitLog:
    """Appends records to the newest file and leases out bytes of any file."""

    def __init__(
        self,
        files: MappedFiles,
        time: TimeSource,
        store_host: bytes,
        *,
        property_crc: bool = False,
    ) -> None:
        self.files = files
        self.store_host = store_host
        self.now_ms = time.now_ms
        self._property_crc = property_crc
        self._store_host_bit = FLAG_STORE_HOST_V6 if len(store_host) == HOST_V6_SIZE else 0

    # ---- writing ---------------------------------------------------------------------------------

    def append(self, draft: Draft, topic: TopicField, queue_offset: int, now_ms: int) -> PutResult:
        """Write one record. Raises StoreFullError and other StoreErrors; then nothing has changed.

        ``now_ms`` is the common store time of records that are appended together.
        """
        body, properties, sys_flag = draft.body, draft.properties, draft.sys_flag
        born_host = draft.born_host
        if self._property_crc:
            properties = reserve_property_crc(properties)
        pack_head_into, head_size = _pack_head_v4_into, _HEAD_V4_SIZE
        if len(born_host) != HOST_V4_SIZE or self._store_host_bit or sys_flag & FLAG_HOSTS_V6_MASK:
            sys_flag = self._with_host_bits(draft)
            head = RECORD_HEADS[(sys_flag & FLAG_HOSTS_V6_MASK) >> 4]
            pack_head_into, head_size = head.pack_into, head.size
        body_size = len(body)
        tail = topic.field + _pack_properties_length(len(properties)) + properties
        size = head_size + body_size + len(tail)

        file = self.files.last
        position = file.wrote
        end = position + size
        if end > file.prepared or end + BLANK_SIZE_MIN > file.size:
            file = self._file_with_room(size)
            position = file.wrote
            end = position + size
        log_offset = file.start_offset + position
        buffer = file.buffer
        body_end = end - len(tail)
        buffer[position + head_size : body_end] = body
        buffer[body_end:end] = tail
        pack_head_into(  # last: without it the rest is not a record if the process dies here
            buffer, position, size, topic.magic, crc32(body) & 0x7FFF_FFFF, draft.queue_id,
            draft.flag, queue_offset, log_offset, sys_flag, draft.born_timestamp, born_host,
            now_ms, self.store_host, draft.reconsume_times, draft.prepared_transaction_offset,
            body_size,
        )  # fmt: skip
        if self._property_crc:
            seal_property_crc(buffer, position, size)
        file.last_store_timestamp = now_ms
        file.wrote = end
        return PutResult(_PUT_OK, log_offset, size, queue_offset, now_ms, 1)

    def append_batch(
        self,
        draft: Draft,
        topic: TopicField,
        queue_offset: int,
        batch: Batch,
        now_ms: int,
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Write one record per message, all in one file, with consecutive queue offsets.

        Topic, queue, times and hosts are the draft's; body, properties and flag are each message's.
        Readers see all of the batch or nothing. Returns the log offsets and sizes of the records.
        """
        sys_flag = self._with_host_bits(draft)
        head = RECORD_HEADS[(sys_flag & FLAG_HOSTS_V6_MASK) >> 4].pack(
            0, topic.magic, 0, draft.queue_id, 0, 0, 0, sys_flag, draft.born_timestamp,
            draft.born_host, now_ms, self.store_host, draft.reconsume_times, 0, 0,
        )  # fmt: skip
        shared = Shared(topic.magic, draft.queue_id, middle_of(head), topic.field)
        if self._property_crc:
            batch = batch.with_properties([reserve_property_crc(each) for each in batch.properties])
        overhead = shared.size
        file = self._file_with_room(overhead * len(batch) + sum(batch.sizes))
        position = file.wrote
        log_offset = file.start_offset + position
        records = pack_batch(shared, batch, queue_offset, log_offset)
        log_offsets, sizes = places_of(batch, overhead, log_offset)
        if self._property_crc:
            records = _sealed(records, sizes)
        end = position + len(records)
        start = position + TOTAL_SIZE.size
        with memoryview(records) as view:
            file.buffer[start:end] = view[TOTAL_SIZE.size :]
            file.buffer[position:start] = view[: TOTAL_SIZE.size]  # last: see append
        file.last_store_timestamp = now_ms
        file.wrote = end
        return log_offsets, sizes

    def can_hold(self, draft: Draft, topic: TopicField) -> bool:
        """Whether a log file is large enough for a draft and the blank that closes the file."""
        head = RECORD_HEADS[(self._with_host_bits(draft) & FLAG_HOSTS_V6_MASK) >> 4]
        properties = draft.properties
        if self._property_crc:
            properties = reserve_property_crc(properties)
        size = head.size + len(draft.body) + len(topic.field) + PROPERTIES_LENGTH.size
        return size + len(properties) + BLANK_SIZE_MIN <= self.files.file_size

    def _with_host_bits(self, draft: Draft) -> int:
        sys_flag = draft.sys_flag & ~FLAG_HOSTS_V6_MASK | self._store_host_bit
        if len(draft.born_host) == HOST_V6_SIZE:
            sys_flag |= FLAG_BORN_HOST_V6
        return sys_flag

    def _file_with_room(self, size: int) -> MappedFile:
        """The newest file, or the next one if no blank would fit after the record."""
        file = self.files.last
        if file.wrote + size + BLANK_SIZE_MIN > file.size:
            file = self._roll(file, size)
        end = file.wrote + size
        if end > file.prepared:
            file.prepare(end)
        return file

    def _roll(self, full: MappedFile, size: int) -> MappedFile:
        """Close the newest file with a blank record and begin the next one.

        The next file exists before the blank is written: if it cannot be created (full disk), the
        old file stays as it is and the append fails without a trace.
        """
        if size + BLANK_SIZE_MIN > self.files.file_size:
            raise StoreError(
                f"{size} bytes do not fit into a log file of {self.files.file_size} bytes",
                hint="raise mappedFileSizeCommitLog above maxMessageSize",
            )
        if full.wrote < full.size:
            full.prepare(full.wrote + BLANK_SIZE_MIN)
        following = self.files.roll()
        following.last_store_timestamp = full.last_store_timestamp
        if full.wrote < full.size:
            BLANK_RECORD.pack_into(full.buffer, full.wrote, full.size - full.wrote, MAGIC_BLANK)
            full.wrote = full.size
        return following

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def last_store_timestamp(self) -> int:
        """Store time of the newest record; 0 in a log without records."""
        return self.files.last.last_store_timestamp

    @property
    def min_offset(self) -> int:
        """Start of the oldest file."""
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        """End of the newest readable record."""
        return self.files.max_offset

    def lease(self, log_offset: int, size: int) -> Lease | None:
        """The bytes of a record (or of neighbours within a file); None if they were deleted."""
        file = self.files.find(log_offset)
        if file is None:
            return None
        try:
            return file.lease(log_offset - file.start_offset, size)
        except RangeNotReadableError:
            return None


def _sealed(records: bytes, sizes: Sequence[int]) -> bytes:
    """The records with the checksums that end their properties."""
    buffer = bytearray(records)
    position = 0
    for size in sizes:
        seal_property_crc(buffer, position, size)
        position += size
    return bytes(buffer)

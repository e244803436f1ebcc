"""Dumps a store directory as plain values: records, queue entries and index entries.

Each function yields one dictionary per item, ready to be a line of JSON. The names are those of
RocketMQ's own tools (``commitLogOffset``, ``queueOffset``, ``tagsCode``). Directories are only
read, also those of Apache's broker, and one item is in memory at a time; see
:mod:`skylark.store.inspection`.

Records come in the order of the log, independent of the derived files: a store without its queues
can be dumped. Damage in the log is skipped and reported to ``on_hole``.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.store.file_system import FileSystem
from skylark.store.inspection.index_walk import IndexPage
from skylark.store.inspection.log_walk import Hole, LogEnd, walk
from skylark.store.inspection.queue_reader import QueueReader
from skylark.store.inspection.store_directory import Survey
from skylark.wire.compress import decompress_body
from skylark.wire.layout import FLAG_COMPRESSED
from skylark.wire.message import MessageRecord, decode_record, format_host
from skylark.wire.record_scan import RecordColumns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: One item of a dump.
Item: TypeAlias = dict[str, object]
#: Called for bytes in the log that are not a record.
OnHole: TypeAlias = Callable[[Hole], None]


class BodyForm(enum.Enum):
    """How a dump shows bodies; compressed ones are decompressed."""

    BASE64 = "base64"
    TEXT = "text"  #: as UTF-8, invalid bytes replaced
    NONE = "none"


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which items to dump; offsets are queue offsets, the end is not included."""

    topic: str | None = None
    queue_id: int | None = None
    first: int = 0
    end: int | None = None

    def rows(self, columns: RecordColumns) -> npt.NDArray[np.int64]:
        """The selected records of a slice."""
        import numpy as np

        wanted = columns.queue_offset >= self.first
        if self.end is not None:
            wanted &= columns.queue_offset < self.end
        if self.queue_id is not None:
            wanted &= columns.queue_id == self.queue_id
        rows: npt.NDArray[np.int64] = np.flatnonzero(wanted)
        return rows if self.topic is None else self._of_topic(self.topic, columns, rows)

    def _of_topic(
        self, name: str, columns: RecordColumns, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        import numpy as np

        topic, buffer = name.encode("utf-8", "replace"), columns.buffer
        rows = rows[columns.topic_size[rows] == len(topic)]
        starts = columns.topic_start[rows].tolist()
        equal = [bytes(buffer[start : start + len(topic)]) == topic for start in starts]
        return rows[np.array(equal, np.bool_)]


def dump_records(
    files: FileSystem,
    survey: Survey,
    selection: Selection,
    *,
    body_form: BodyForm = BodyForm.BASE64,
    on_hole: OnHole | None = None,
) -> Iterator[Item]:
    """The messages of the log, in its order."""
    end = LogEnd(files, survey)
    for number, file in enumerate(survey.log_files):
        for step in walk(files, file):
            if isinstance(step, RecordColumns):
                for position in step.position[selection.rows(step)].tolist():
                    yield record_item(decode_record(step.buffer, position), body_form)
            elif isinstance(step, Hole):
                if end.is_at(step, number):
                    return
                if on_hole is not None:
                    on_hole(step)


def record_item(record: MessageRecord, body_form: BodyForm) -> Item:
    """A record with all its fields."""
    item: Item = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.log_offset,
        "storeSize": record.total_size,
        "bodyCRC": record.body_crc,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": format_host(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": format_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "msgId": record.offset_id,
        "properties": record.properties,
        "storedBodyLength": len(record.body),
    }
    if body_form is BodyForm.NONE:
        return item
    body = record.body
    if record.sys_flag & FLAG_COMPRESSED:
        try:
            body = decompress_body(body, record.sys_flag)
        except RemoteProtocolError as error:
            item["bodyError"] = str(error)
    if body_form is BodyForm.TEXT:
        item["body"] = body.decode("utf-8", "replace")
    else:
        item["body"] = base64.b64encode(body).decode()
    return item


def dump_queues(files: FileSystem, survey: Survey, selection: Selection) -> Iterator[Item]:
    """The entries of consume queues and batch queues, queue by queue."""
    with closing(QueueReader(files)) as reader:
        for queue in survey.queues:
            if selection.topic not in (None, queue.topic):
                continue
            if selection.queue_id not in (None, queue.queue_id):
                continue
            for index, entries in reader.used(queue, queue.first_index):
                for number, entry in enumerate(entries.tolist(), index):
                    item = _entry_item(queue.topic, queue.queue_id, number, entry)
                    offset = item["queueOffset"]
                    assert isinstance(offset, int)
                    if selection.first <= offset and (
                        selection.end is None or offset < selection.end
                    ):
                        yield item


def _entry_item(topic: str, queue_id: int, number: int, entry: tuple[int, ...]) -> Item:
    log_offset, size, tags_code, *batch = entry
    item: Item = {
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": batch[1] if batch else number,
        "commitLogOffset": log_offset,
        "size": size,
        "tagsCode": tags_code,
    }
    if batch:
        item |= {"storeTimestamp": batch[0], "messageCount": batch[2]}
    return item


def dump_index(files: FileSystem, survey: Survey) -> Iterator[Item]:
    """The entries of the index, file by file; nothing if its shape is unknown."""
    if survey.index_shape is None:
        return
    for path in survey.index_files:
        with closing(IndexPage(files, path, survey.index_shape)) as page:
            number = 1
            while len(entries := page.read()):
                for key_hash, log_offset, seconds, previous in entries.tolist():
                    yield {
                        "file": path.name,
                        "entry": number,
                        "keyHash": key_hash,
                        "commitLogOffset": log_offset,
                        "storeTimestamp": page.file.begin_timestamp + seconds * 1000,
                        "previous": previous,
                    }
                    number += 1

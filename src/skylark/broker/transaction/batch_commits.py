"""The quick way to commit half messages of which nothing special has to be thought.

A half message is *plain* if it is open and the only copy of itself, of the group that decides, with
the id that is named, still immune, and if its final message is the same without its destination: no
delay, no checksum of properties, the destination at the end of the property string, where
:mod:`skylark.broker.transaction.half_batches` writes it. Then nothing is parsed and nothing is
written anew: the final message takes over the bytes. It is the same that
:meth:`TransactionService.end
<skylark.broker.transaction.transaction_service.TransactionService.end>` would have stored. Those of
one queue that were sent together are appended together.

Whatever is not plain, or wrong in any way, is left to that: :meth:`PlainCommits.commit` returns
None and has done nothing.

What a crash within an append leaves: the first final messages of it. Each names its half message,
so recovery finds that those are decided, and the others are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Self

from skylark.broker.send.message_policy import TIMER_NAMES
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.transaction.half_message import parse_number
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.errors import RemoteProtocolError
from skylark.core.names import HALF_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.mapped_file import Lease
from skylark.store.put_message import PutLimits
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.end_halves_body import HalfPlace
from skylark.wire.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from skylark.wire.message import MessageRecord, decode_record

_DESTINATION: Final = b"\x02" + names.PROPERTY_REAL_TOPIC.encode() + b"\x01"
_TAIL: Final = re.compile(
    f"{names.PROPERTY_REAL_TOPIC}\x01([^\x01\x02]+)\x02"
    f"{names.PROPERTY_REAL_QID}\x01([0-9]{{1,9}})\x02".encode()
)
_GROUP: Final = names.needle_of(names.PROPERTY_PGROUP.encode())
_UNIQUE_ID: Final = names.needle_of(names.PROPERTY_UNIQ_KEY.encode())
_IMMUNITY: Final = names.needle_of(names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS.encode())
_SPECIAL: Final = re.compile(
    "(?:^|\x02)(?:{})\x01".format(
        "|".join(
            (
                *TIMER_NAMES,
                names.PROPERTY_DELAY,
                names.PROPERTY_REAL_TOPIC,
                names.PROPERTY_REAL_QID,
                names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
                names.PROPERTY_TRANSACTION_CHECK_TIMES,
                names.PROPERTY_CRC32,
            )
        )
    ).encode()
)


class PlainCommits:
    """Commits for one request; to be used in a ``with`` block, for it keeps a log file mapped."""

    def __init__(
        self, transactions: TransactionService, writer: MessageWriter, group: str, now_ms: int
    ) -> None:
        self._transactions = transactions
        self._writer = writer
        self._group = group.encode()
        self._now_ms = now_ms
        self._lease: Lease | None = None
        self._start = self._end = 0  # log offsets of what is leased
        self._tail = b""  # the destination of the last message, and what it says
        self._topic, self._queue_id = "", 0
        self._immunity_raw, self._immunity_ms = b"", 0  # likewise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lease is not None:
            self._lease.release()

    def commit(self, places: Sequence[HalfPlace]) -> PutResult | None:
        """Commit as many as go together, from the first on; how many, the result says.

        None if the first takes more thought, or if nothing can be stored.
        """
        first = self._plain(places[0]) if places else None
        if first is None:
            return None
        records, messages = [first], [self._final(first)]
        topic, draft = self._topic, self._draft(first)
        seen = {first.queue_offset}
        size_left = self._writer.store.config.max_message_size - first.total_size
        for place in places[1:]:
            record = self._plain(place)
            if record is None or record.queue_offset in seen or self._draft(record) != draft:
                break
            size_left -= record.total_size
            if size_left < 0:
                break
            seen.add(record.queue_offset)
            records.append(record)
            messages.append(self._final(record))
        batch = Batch.of(messages)
        result = self._writer.put_batch(draft, batch, PutLimits.RECORD_FORMAT_ONLY)
        if not result.status.stored:
            return None
        self._transactions.finals_stored(records, topic, result)
        return result

    def _plain(self, place: HalfPlace) -> MessageRecord | None:
        """The half message, if it is plain; its destination has been read then."""
        record = self._read(place.log_offset)
        if (
            record is None
            or record.topic != HALF_TOPIC
            or record.queue_offset != place.queue_offset
            or not self._transactions.is_open_alone(place.queue_offset)
        ):
            return None
        raw = record.raw_properties
        border = raw.rfind(_DESTINATION) + 1
        if (
            not border
            or names.find_by_needle(raw, _UNIQUE_ID) != place.unique_id.encode()
            or names.find_by_needle(raw, _GROUP) != self._group
            or not self._is_immune(record)
            or not self._reads_destination(raw[border:])
            or _SPECIAL.search(raw, 0, border)
        ):
            return None
        return record

    def _draft(self, record: MessageRecord) -> Draft:
        """What final messages have in common that go together."""
        return Draft(
            self._topic,
            self._queue_id,
            b"",
            sys_flag=record.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
        )

    def _final(self, record: MessageRecord) -> BatchMessage:
        properties = record.raw_properties[: -len(self._tail)]
        return BatchMessage(record.body, properties, record.flag, record.log_offset)

    def _read(self, log_offset: int) -> MessageRecord | None:
        """The record at a log offset; None if none begins there."""
        if not self._start <= log_offset < self._end and not self._map(log_offset):
            return None
        assert self._lease is not None
        position = log_offset - self._start
        try:
            return decode_record(self._lease.view, position, log_start=self._start)
        except RemoteProtocolError:
            return None

    def _map(self, log_offset: int) -> bool:
        """Lease the rest of the file in which a record is."""
        if self._lease is not None:
            self._lease.release()
            self._lease, self._end = None, 0
        file = self._writer.store.log.files.find(log_offset)
        if file is None:
            return False
        position = log_offset - file.start_offset
        if position >= file.readable:
            return False
        self._lease = file.lease(position, file.readable - position)
        self._start, self._end = log_offset, file.start_offset + file.readable
        return True

    def _is_immune(self, record: MessageRecord) -> bool:
        raw = names.find_by_needle(record.raw_properties, _IMMUNITY)
        if raw is None:
            return False
        if raw != self._immunity_raw:
            seconds = parse_number(raw.decode("utf-8", "replace"))
            self._immunity_raw, self._immunity_ms = raw, (seconds or 0) * 1000
        return self._now_ms - record.born_timestamp <= self._immunity_ms

    def _reads_destination(self, tail: bytes) -> bool:
        """Whether the end of a property string is a destination and nothing else."""
        if tail == self._tail:
            return True
        found = _TAIL.fullmatch(tail)
        if found is None:
            return False
        self._topic, self._queue_id = found[1].decode("utf-8", "replace"), int(found[2])
        self._tail = tail
        return True

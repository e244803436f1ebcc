"""Decodes the messages in the reply to a pull, for every kind of consumer.

The messages of inner batches come out one by one. Each gets the smallest and largest offset of its
queue as of the pull among its properties, as Java's client does. A message that was dispatched to
several queues names another one in its record than that which it was read from; here it shows the
latter.

Bytes that are no record end the list: what came before them is good. Counterpart of the first half
of Java's ``PullAPIWrapper.processPullResult``.
"""

from __future__ import annotations

from typing import Final

from skylark.client.core.broker_calls import Pulled
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import MessageRecord, inflate_record, iter_records, unwrap_record
from skylark.wire.properties import PROPERTY_MAX_OFFSET, PROPERTY_MIN_OFFSET

_INNER_BATCH: Final = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP


def decode_messages(
    pulled: Pulled, queue: MessageQueue, topic: str | None = None
) -> tuple[list[MessageExt], RemoteProtocolError | None]:
    """The messages in an answer, and the error that ended them; ``topic`` is the one to show."""
    broker_name, queue_id, delta = queue.broker_name, queue.queue_id, pulled.offset_delta
    seen = (
        f"{PROPERTY_MIN_OFFSET}\x01{pulled.min_offset}\x02"
        f"{PROPERTY_MAX_OFFSET}\x01{pulled.max_offset}\x02"
    ).encode()
    found: list[MessageExt] = []
    try:
        for stored in iter_records(pulled.body):
            parts = (stored,) if stored.sys_flag & _INNER_BATCH != _INNER_BATCH else None
            for record in parts or _unwrap(stored):
                raw = record.raw_properties
                record.raw_properties = raw + (seen if raw[-1:] == b"\x02" else b"\x02" + seen)
                if record.queue_id != queue_id:
                    record.queue_id = queue_id
                if delta:
                    record.queue_offset += delta
                found.append(MessageExt(record, broker_name, topic))
    except RemoteProtocolError as error:
        return found, error
    return found, None


def _unwrap(stored: MessageRecord) -> list[MessageRecord]:
    inflate_record(stored)
    return unwrap_record(stored)

"""Looks up messages: by key (12), by their place in the log (33), and as entries of a queue (321).

12 and 33 return records of the log. A query by key returns what the index has for the hash of the
key; clients compare the keys themselves. With code 22, nothing found, both numbers of the answer
are 0.

321 returns raw entries of a queue, for people who search for a lost message. With a group it also
returns what the group subscribes to. Java's ``eval`` and ``bitMap`` are about queue extension
files, which do not exist here: the one stays false, the other is missing.

Counterpart of Java's ``QueryMessageProcessor`` and of ``queryConsumeQueue`` in
``AdminBrokerProcessor``.
"""

from __future__ import annotations

from typing import Final

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.groups.consumer_filters import SQL92
from skylark.core.errors import BrokerError
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.store.consume_queue import EntryQueue
from skylark.wire.bodies.admin_body import ConsumeQueueData, QueryConsumeQueueResponseBody
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.admin import QueryConsumeQueueRequestHeader
from skylark.wire.headers.pull import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)

NOT_FOUND: Final = "can not find message, maybe time range not correct"
#: Most entries in one answer to 321.
COUNT_MAX: Final = 2_000
_TAG_INDEX: Final = "T"


class QueryHandlers(AdminHandlers):
    """The requests that look messages up."""

    @handles(RequestCode.QUERY_MESSAGE)
    def query(self, _connection: Connection, request: Command) -> Command:
        """QUERY_MESSAGE (12)."""
        header = decode_ext(QueryMessageRequestHeader, request.ext)
        result = self._broker.store.reader.query(
            header.topic,
            header.key,
            # Only a retry gives more than one message the same unique key.
            self._broker.store.config.default_query_max_num
            if header.unique_key_query
            else max(0, header.max_num),
            header.begin_timestamp,
            header.end_timestamp,
            index_type=_TAG_INDEX if header.index_type == _TAG_INDEX else None,
        )
        body = b"".join(result.views)
        result.release()
        answer = QueryMessageResponseHeader(
            index_last_update_timestamp=result.index_last_timestamp if body else 0,
            index_last_update_phyoffset=result.index_last_log_offset if body else 0,
        )
        if not body:
            return response_to(
                request, ResponseCode.QUERY_NOT_FOUND, NOT_FOUND, ext=encode_ext(answer)
            )
        return response_to(request, ResponseCode.SUCCESS, ext=encode_ext(answer), body=body)

    @handles(RequestCode.VIEW_MESSAGE_BY_ID)
    def view(self, _connection: Connection, request: Command) -> Command:
        """VIEW_MESSAGE_BY_ID (33)."""
        header = decode_ext(ViewMessageRequestHeader, request.ext)
        lease = self._broker.store.reader.record(header.offset)
        if lease is None:
            raise BrokerError(f"can not find message by the offset, {header.offset}")
        with lease:
            body = bytes(lease.view)
        return response_to(request, ResponseCode.SUCCESS, body=body)

    @handles(RequestCode.QUERY_CONSUME_QUEUE)
    def query_queue(self, _connection: Connection, request: Command) -> Command:
        """QUERY_CONSUME_QUEUE (321)."""
        header = decode_ext(QueryConsumeQueueRequestHeader, request.ext)
        topic = header.topic or ""
        name = f"{header.queue_id}@{topic}"
        queue = self._broker.store.queues.get(topic, header.queue_id)
        if queue is None:
            raise BrokerError(f"{name} is not exist!")
        if not queue.min_offset <= header.index < queue.max_offset:
            return success(request, remark=f"Index {header.index} of {name} is not exist!")
        body = QueryConsumeQueueResponseBody(
            max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset,
            queue_data=_entries(queue, header.index, min(header.count, COUNT_MAX)),
        )
        if header.consumer_group is not None:
            self._add_group(body, topic, header.consumer_group)
        return success(request, body=body)

    def _add_group(self, body: QueryConsumeQueueResponseBody, topic: str, group: str) -> None:
        body.subscription_data = self._broker.consumers.subscription(group, topic)
        if body.subscription_data is None:
            body.filter_data = f"{group}@{topic} is not online!"
        else:
            body.filter_data = self._describe(topic, group)

    def _describe(self, topic: str, group: str) -> str:
        """The SQL filter of a group as JSON; ``null`` if it has none."""
        found = self._broker.filters.get(topic, group)
        if found is None:
            return "null"
        described = {
            "bornTime": found.born_ms,
            "clientVersion": found.client_version,
            "consumerGroup": found.group,
            "dead": found.is_dead,
            "deadTime": found.dead_ms,
            "expression": found.sql.text,
            "expressionType": SQL92,
            "topic": found.topic,
        }
        return encode_body(described).decode()


def _entries(queue: EntryQueue, offset: int, count: int) -> list[ConsumeQueueData]:
    entries = []
    end = min(offset + count, queue.max_offset)
    while offset < end:
        entry = queue.read_entry(offset)
        if entry is None:
            break
        entries.append(
            ConsumeQueueData(
                physic_offset=entry.log_offset, physic_size=entry.size, tags_code=entry.tags_code
            )
        )
        offset = entry.queue_offset + entry.message_count
    return entries

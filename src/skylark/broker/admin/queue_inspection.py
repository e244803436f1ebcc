"""QUERY_CONSUME_QUEUE (321): the raw entries of a queue, for people who look for a lost message.

With a group the answer also says what the group subscribes to. Java's ``eval`` and ``bitMap`` are
about queue extension files, which do not exist here: the one stays false, the other is missing.
"""

from __future__ import annotations

from typing import Final

from skylark.broker.groups.consumer_filters import SQL92, ConsumerFilterTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.core.errors import BrokerError
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.store.consume_queue import EntryQueue
from skylark.store.queue_registry import ConsumeQueues
from skylark.wire.bodies.admin_body import ConsumeQueueData, QueryConsumeQueueResponseBody
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import QueryConsumeQueueRequestHeader

#: Entries in one answer, however many were asked for.
COUNT_MAX: Final = 2_000


class QueueHandlers:
    """The request about entries of queues."""

    def __init__(
        self, queues: ConsumeQueues, consumers: ConsumerTable, filters: ConsumerFilterTable
    ) -> None:
        self._queues = queues
        self._consumers = consumers
        self._filters = filters

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.QUERY_CONSUME_QUEUE, self.query)

    def query(self, _connection: Connection, request: Command) -> Command:
        """QUERY_CONSUME_QUEUE (321)."""
        header = decode_ext(QueryConsumeQueueRequestHeader, request.ext)
        topic = header.topic or ""
        name = f"{header.queue_id}@{topic}"
        queue = self._queues.get(topic, header.queue_id)
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
        body.subscription_data = self._consumers.subscription(group, topic)
        if body.subscription_data is None:
            body.filter_data = f"{group}@{topic} is not online!"
        else:
            body.filter_data = self._describe(topic, group)

    def _describe(self, topic: str, group: str) -> str:
        """The SQL filter of a group as JSON; ``null`` if it has none."""
        found = self._filters.get(topic, group)
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

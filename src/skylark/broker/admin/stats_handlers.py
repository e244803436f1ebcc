"""Requests about progress and rates of topics and groups, for monitoring.

=====================================  ===========================================================
GET_TOPIC_STATS_INFO (202)             smallest and largest offset of each queue of a topic
GET_CONSUME_STATS (208)                how far a group is behind, queue by queue
GET_BROKER_CONSUME_STATS (317)         the same for all groups
QUERY_CONSUME_TIME_SPAN (303)          store times of the messages of a topic and of a group
QUERY_CORRECTION_OFFSET (308)          the smallest offset of all groups
VIEW_BROKER_STATS_DATA (315)           one statistic by minute, hour and day
=====================================  ===========================================================

A group has a topic if it has committed offsets for it; while the group is online, only if it still
subscribes to it as well. Different from Java: 317 includes messages that were pulled and not
committed yet (Java counts 0 and shows a negative sum), and for a group that never committed 303 has
the time of the first message of the queue (Java: 1970). 208 also reports the last pop of a message
that it names (:mod:`skylark.broker.pop.popped_lookup`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from skylark.broker.admin.chunked_json import PER_TURN, ObjectPieces
from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.core.errors import TopicNotExistError
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.stats import (
    OffsetWrapper,
    PoppedReport,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    TopicOffset,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import (
    GetConsumeStatsInBrokerRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    TopicRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from skylark.wire.headers.offset import QueryCorrectionOffsetRequestHeader

#: In 308: the group is so far behind that there is no right offset for it.
NO_CORRECTION: Final = 2**63 - 1


class StatsHandlers(AdminHandlers):
    """The requests about progress and rates."""

    # --- topics -----------------------------------------------------------------------------------

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    async def topic_stats(self, _connection: Connection, request: Command) -> Command:
        """GET_TOPIC_STATS_INFO (202)."""
        topic = self._topic(decode_ext(TopicRequestHeader, request.ext).topic)
        name = topic.topic_name
        table = ObjectPieces(self._broker.clock)
        for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums)):
            max_offset = self._broker.store.reader.max_offset(name, queue_id)
            last_ms = self._store_time(name, queue_id, max_offset - 1) if max_offset else 0
            offsets = TopicOffset(
                min_offset=self._broker.store.reader.min_offset(name, queue_id),
                max_offset=max_offset,
                last_update_timestamp=last_ms,
            )
            await table.put(self._queue(name, queue_id), offsets)
        body = b'{"offsetTable":%b,"topicPutTps":%b}' % (
            table.encode(),
            encode_body(self._broker.stats.put_tps(name)),
        )
        return response_to(request, ResponseCode.SUCCESS, body=body)

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
    async def time_span(self, _connection: Connection, request: Command) -> Command:
        """QUERY_CONSUME_TIME_SPAN (303)."""
        header = decode_ext(QueryConsumeTimeSpanRequestHeader, request.ext)
        topic = self._topic(header.topic)
        spans = []
        for queue_id in range(topic.write_queue_nums):
            spans.append(self._time_span(header.group, topic.topic_name, queue_id))
            if len(spans) % PER_TURN == 0:
                await self._broker.clock.sleep(0)
        return success(request, body=QueryConsumeTimeSpanBody(consume_time_span_set=spans))

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        reader = self._broker.store.reader
        min_offset = reader.min_offset(topic, queue_id)
        max_offset = reader.max_offset(topic, queue_id)
        min_ms = self._store_time(topic, queue_id, min_offset)
        max_ms = self._store_time(topic, queue_id, max_offset - 1)
        offset = self._broker.offsets.get(group, topic, queue_id)
        consumed_ms = self._store_time(topic, queue_id, offset - 1) if offset > 0 else min_ms
        span = QueueTimeSpan(
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=min_ms,
            max_time_stamp=max_ms,
            consume_time_stamp=consumed_ms,
            min_time_stamp_str=local_time(min_ms),
            max_time_stamp_str=local_time(max_ms),
            consume_time_stamp_str=local_time(consumed_ms),
        )
        next_ms = reader.store_time(topic, queue_id, max(offset, min_offset))
        if next_ms is not None:  # there is a message to consume
            span.delay_time = self._broker.clock.now_ms() - next_ms
        return span

    # --- groups -----------------------------------------------------------------------------------

    @handles(RequestCode.GET_CONSUME_STATS)
    async def consume_stats(self, _connection: Connection, request: Command) -> Command:
        """GET_CONSUME_STATS (208)."""
        header = decode_ext(GetConsumeStatsRequestHeader, request.ext)
        group = header.consumer_group
        named = list(filter(None, (header.topic_list or "").split(";")))
        if not named:
            given = (header.topic or "").strip()
            known = [given] if given else self._broker.offsets.topics_of(group)
            named = [topic for topic in known if self._consumes(group, topic)]
        table = ObjectPieces(self._broker.clock)
        tps = 0.0
        for topic in dict.fromkeys(named):
            config = self._broker.topics.get(topic)
            if config is not None:
                await self._add_progress(table, group, topic, config.read_queue_nums)
                tps += self._broker.stats.get_tps(topic, group)
        body = _consume_stats(table, tps, await self._popped(header))
        return response_to(request, ResponseCode.SUCCESS, body=body)

    async def _popped(self, header: GetConsumeStatsRequestHeader) -> PoppedReport | None:
        """The last pop of the message that a request names; None where nothing is popped."""
        broker, topic = self._broker, header.topic
        queue_id, offset = header.popped_queue_id, header.popped_offset
        if topic is None or queue_id is None or offset is None:
            return None
        return await broker.popped_report(topic, header.consumer_group, queue_id, offset)

    @handles(RequestCode.GET_BROKER_CONSUME_STATS)
    async def all_consume_stats(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_CONSUME_STATS (317)."""
        only_order = decode_ext(GetConsumeStatsInBrokerRequestHeader, request.ext).is_order
        topics_of = self._broker.offsets.dump().group_topic_map or {}
        parts: list[bytes] = []
        behind_total = inflight_total = 0
        for group in [config.group_name for config in self._broker.groups]:
            reports = []
            for topic in topics_of.get(group, ()):
                config = self._broker.topics.get(topic)
                is_wanted = config is not None and (config.order or not only_order)
                if config is not None and is_wanted and self._consumes(group, topic):
                    table = ObjectPieces(self._broker.clock)
                    queue_count = config.write_queue_nums
                    behind, inflight = await self._add_progress(table, group, topic, queue_count)
                    behind_total += behind
                    inflight_total += inflight
                    reports.append(_consume_stats(table, self._broker.stats.get_tps(topic, group)))
                    await self._broker.clock.sleep(0)
            parts.append(b"{%b:[%b]}" % (encode_body(group), b",".join(reports)))
        body = (
            b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
            % (
                encode_body(self._broker.live.current.broker_addr),
                b",".join(parts),
                behind_total,
                inflight_total,
            )
        )
        return response_to(request, ResponseCode.SUCCESS, body=body)

    async def _add_progress(
        self, table: ObjectPieces, group: str, topic: str, queue_count: int
    ) -> tuple[int, int]:
        """Put the queues of a topic into the table.

        Returns how many messages the group has not consumed yet, and how many of these it has
        pulled.
        """
        behind = inflight = 0
        for queue_id in range(queue_count):
            offset = max(0, self._broker.offsets.get(group, topic, queue_id))
            report = OffsetWrapper(
                broker_offset=self._broker.store.reader.max_offset(topic, queue_id),
                consumer_offset=offset,
                pull_offset=max(offset, self._broker.offsets.get_pulled(group, topic, queue_id)),
                popped_in_flight=self._broker.popped_count(topic, group, queue_id) or None,
            )
            if offset > 0:
                report.last_timestamp = max(0, self._store_time(topic, queue_id, offset - 1))
            behind += report.broker_offset - offset
            inflight += report.pull_offset - offset
            await table.put(self._queue(topic, queue_id), report)
        return behind, inflight

    @handles(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction(self, _connection: Connection, request: Command) -> Command:
        """QUERY_CORRECTION_OFFSET (308)."""
        header = decode_ext(QueryCorrectionOffsetRequestHeader, request.ext)
        left_out = frozenset(filter(None, (header.filter_groups or "").split(",")))
        smallest = self._broker.offsets.smallest(header.topic, self._broker.store.reader, left_out)
        for queue_id, offset in self._broker.offsets.committed(
            header.compare_group, header.topic
        ).items():
            if smallest.get(queue_id, -1) > offset:
                smallest[queue_id] = NO_CORRECTION
        return success(request, body=QueryCorrectionOffsetBody(correction_offsets=smallest))

    # --- rates ------------------------------------------------------------------------------------

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def view(self, _connection: Connection, request: Command) -> Command:
        """VIEW_BROKER_STATS_DATA (315)."""
        header = decode_ext(ViewBrokerStatsDataRequestHeader, request.ext)
        return success(request, body=self._broker.stats.view(header.stats_name, header.stats_key))

    # --- inside -----------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicConfig:
        config = self._broker.topics.get(name)
        if config is None:
            raise TopicNotExistError(f"topic[{name}] not exist")
        return config

    def _consumes(self, group: str, topic: str) -> bool:
        """Whether a group consumes a topic: not if it is online and subscribes to others only."""
        online = self._broker.consumers.group(group)
        if online is None or not online.subscriptions:
            return True
        return self._broker.consumers.subscription(group, topic) is not None

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        store_ms = self._broker.store.reader.store_time(topic, queue_id, offset)
        return -1 if store_ms is None else store_ms


def _consume_stats(table: ObjectPieces, tps: float, popped: PoppedReport | None = None) -> bytes:
    """A ``ConsumeStats`` body."""
    end = b"" if popped is None else b',"popped":%b' % encode_body(popped)
    return b'{"consumeTps":%b,"offsetTable":%b%b}' % (encode_body(tps), table.encode(), end)


def local_time(time_ms: int) -> str:
    """A local time as Java formats it: ``2026-11-15#08:09:52:001``."""
    local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    return f"{local:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"

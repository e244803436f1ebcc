"""Offset reset (222), and copying the offsets of one group to another (314).

**Reset by the broker** (``useServerSideResetOffset``, the default): the broker sets the committed
offsets, and leaves a pending reset for each queue, which the next pull takes
(:mod:`skylark.broker.groups.consumer_offsets`). Members need not be online. The answer waits for
the disk: after a crash the group continues at the new offsets. Only the pending resets are lost
with the process; a member that has not pulled since may then commit its old offset.

**Reset by the members**, as in 4.x: the broker works out the offsets and sends them to all members
(220), who stop, move and commit. The broker stores nothing before they do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.groups.consumer_offsets import reset_targets
from skylark.broker.groups.consumer_table import Member
from skylark.broker.table_saver import until_saved
from skylark.core.errors import (
    BrokerError,
    ConsumerNotOnlineError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
    TransportError,
)
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.bodies.admin_body import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import V3_0_7_SNAPSHOT, RequestCode, version_name
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.offset import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader

logger = logging.getLogger(__name__)


class ResetHandlers(AdminHandlers):
    """The requests that set offsets of groups."""

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    async def reset(self, connection: Connection, request: Command) -> Command:
        """INVOKE_BROKER_TO_RESET_OFFSET (222)."""
        header = decode_ext(ResetOffsetRequestHeader, request.ext)
        logger.info("%r resets %s of group %s", connection, header.topic, header.group)
        if self._broker.live.current.use_server_side_reset_offset:
            offsets = self._reset_here(header)
            self._broker.saved.offsets.mark()
            await until_saved(self._broker.saved.offsets)
        else:
            offsets = self._reset_by_members(header, is_c=request.language == "CPP")
        return success(request, body=ResetOffsetBody(offset_table=offsets))

    def _reset_here(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        if self._broker.live.current.is_slave:
            raise BrokerError("Can not reset offset in slave broker")
        topic = self._broker.topics.get(header.topic)
        if topic is None:
            raise TopicNotExistError(f"Topic {header.topic} does not exist")
        if header.group not in self._broker.groups:
            raise SubscriptionGroupNotExistError(f"Group {header.group} does not exist")
        targets = reset_targets(
            header.topic,
            queue_id=header.queue_id,
            offset=header.offset,
            timestamp_ms=header.timestamp,
            queue_count=topic.read_queue_nums,
            queues=self._broker.store.reader,
        )
        self._broker.offsets.reset(header.group, header.topic, targets)
        return {self._queue(header.topic, number): offset for number, offset in targets.items()}

    # --- by the members ---------------------------------------------------------------------------

    def _reset_by_members(
        self, header: ResetOffsetRequestHeader, *, is_c: bool
    ) -> dict[MessageQueue, int]:
        """``is_c``: the request comes from C++; Java assumes that so are the members."""
        offsets = self._wanted_offsets(header)
        group = self._broker.consumers.group(header.group)
        if group is None:
            raise ConsumerNotOnlineError(
                f"Consumer not online, so can not reset offset, Group: {header.group}"
                f" Topic: {header.topic} Timestamp: {header.timestamp}"
            )
        members = list(group.members.values())
        check_versions(members)
        body: ResetOffsetBody | ResetOffsetBodyForC = ResetOffsetBody(offset_table=offsets)
        if is_c:
            body = _body_for_c(offsets)
        header_220 = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp
        )
        for member in members:
            command = Command(
                code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ext=encode_ext(header_220),
                body=encode_body(body),
            )
            try:
                member.channel.peer.oneway(command)
            except TransportError as error:
                logger.warning("cannot send the reset to %s: %s", member.channel, error)
        return offsets

    def _wanted_offsets(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        topic = self._broker.topics.get(header.topic)
        if topic is None:
            raise TopicNotExistError(
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
            )
        offsets = {}
        for queue_id in range(topic.write_queue_nums):
            committed = self._broker.offsets.get(header.group, header.topic, queue_id)
            if committed == -1:
                raise BrokerError(f"THe consumer group <{header.group}> not exist")
            if header.timestamp == -1:
                wanted = self._broker.store.reader.max_offset(header.topic, queue_id)
            else:
                wanted = self._broker.store.reader.offset_by_time(
                    header.topic, queue_id, header.timestamp
                )
            queue = self._queue(header.topic, queue_id)
            offsets[queue] = wanted if header.is_force else min(wanted, committed)
        return offsets

    # --- clone ------------------------------------------------------------------------------------

    @handles(RequestCode.CLONE_GROUP_OFFSET)
    async def clone(self, connection: Connection, request: Command) -> Command:
        """CLONE_GROUP_OFFSET (314); without a topic, all topics (Java: none)."""
        header = decode_ext(CloneGroupOffsetRequestHeader, request.ext)
        source, target = header.src_group, header.dest_group
        if self._broker.groups.find(target) is None:
            raise SubscriptionGroupNotExistError(f"Group {target} does not exist")
        given = (header.topic or "").strip()
        topics = [given] if given else self._broker.offsets.topics_of(source)
        known = [topic for topic in topics if topic in self._broker.topics]
        online = self._broker.consumers.group(source)
        if not header.offline and online is not None and online.subscriptions:
            known = [t for t in known if self._broker.consumers.subscription(source, t) is not None]
        self._broker.offsets.clone(source, target, known)
        logger.info("%r copied the offsets of %s to %s: %s", connection, source, target, known)
        self._broker.saved.offsets.mark()
        await until_saved(self._broker.saved.offsets)
        return success(request)


def check_versions(members: Iterable[Member]) -> None:
    """Raise if a member is too old to be sent 220 or 221."""
    for member in members:
        if member.channel.version < V3_0_7_SNAPSHOT:
            raise BrokerError(
                "the client does not support this feature."
                f" version={version_name(member.channel.version)}",
                hint=f"it is {member.channel}",
            )


def _body_for_c(offsets: dict[MessageQueue, int]) -> ResetOffsetBodyForC:
    return ResetOffsetBodyForC(
        offset_table=[
            MessageQueueForC(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                offset=offset,
            )
            for queue, offset in offsets.items()
        ]
    )

"""Client relay: requests of administrators that the broker forwards to clients.

========================================  ========================================================
GET_CONSUMER_RUNNING_INFO (307)           to one member of a group: all about itself
CONSUME_MESSAGE_DIRECTLY (309)            to one member: consume this message now. The broker reads
                                          the message and sends it along
INVOKE_BROKER_TO_GET_CONSUMER_STATUS      to all members as 221: offsets as they see them; those who
(223)                                     do not answer in time are left out
========================================  ========================================================

The broker answers the first two with the client's answer, of any code, and waits for it up to 10 s
(then 207). All ext entries of the request go to the client, except the credentials, which Java
forwards as well.

Counterpart of Java's ``AdminBrokerProcessor.callConsumer`` and ``Broker2Client``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.admin.offset_reset import check_versions
from skylark.broker.groups.client_channel import ClientChannel
from skylark.core.errors import (
    BrokerError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
    broker_error,
)
from skylark.core.hashing import decode_offset_id
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.bodies.admin_body import GetConsumerStatusBody
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import V3_1_8_SNAPSHOT, RequestCode, ResponseCode, version_name
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.client_header import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from skylark.wire.headers.offset import GetConsumerStatusRequestHeader

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 10.0
STATUS_TIMEOUT_S: Final = 5.0
#: Ext entries with credentials.
CREDENTIALS: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})


class RelayHandlers(AdminHandlers):
    """The requests that are forwarded to clients."""

    @handles(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def running_info(self, _connection: Connection, request: Command) -> Command:
        """GET_CONSUMER_RUNNING_INFO (307)."""
        header = decode_ext(GetConsumerRunningInfoRequestHeader, request.ext)
        forwarded = Command(code=request.code, ext=_forwarded(request), body=request.body)
        return await self._ask(request, header.consumer_group, header.client_id, forwarded)

    @handles(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def consume(self, _connection: Connection, request: Command) -> Command:
        """CONSUME_MESSAGE_DIRECTLY (309)."""
        header = decode_ext(ConsumeMessageDirectlyResultRequestHeader, request.ext)
        log_offset = decode_offset_id(header.msg_id or "").log_offset
        lease = self._broker.store.reader.record(log_offset)
        if lease is None:
            raise BrokerError(f"can not find message by the offset, {log_offset}")
        with lease:
            message = bytes(lease.view)
        ext = _forwarded(request) | {"brokerName": self._broker.live.current.broker_name}
        if (topic := self._broker.topics.get(header.topic or "")) is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        if (group := self._broker.groups.find(header.consumer_group)) is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        forwarded = Command(code=request.code, ext=ext, body=message)
        return await self._ask(request, header.consumer_group, header.client_id, forwarded)

    async def _ask(
        self, request: Command, group: str, client_id: str | None, forwarded: Command
    ) -> Command:
        """The answer of a client as the answer to ``request``."""
        client = f"<{group}> <{client_id}>"
        channel = self._broker.consumers.find(group, client_id or "")
        if channel is None:
            raise BrokerError(f"The Consumer {client} not online")
        if channel.version < V3_1_8_SNAPSHOT:
            raise BrokerError(
                f"The Consumer <{client_id}> Version <{version_name(channel.version)}> too low to"
                " finish, please upgrade it to V3_1_8_SNAPSHOT"
            )
        try:
            answer = await channel.peer.call(forwarded, CALL_TIMEOUT_S)
        except RequestTimeoutError as error:
            raise broker_error(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {client} Timeout: {error}"
            ) from error
        except TransportError as error:
            raise BrokerError(f"invoke consumer {client} Exception: {error}") from error
        return response_to(request, answer.code, answer.remark, ext=answer.ext, body=answer.body)

    # --- all members ------------------------------------------------------------------------------

    @handles(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def status(self, _connection: Connection, request: Command) -> Command:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""
        header = decode_ext(GetConsumerStatusRequestHeader, request.ext)
        group = self._broker.consumers.group(header.group)
        if group is None:
            raise BrokerError(f"No Any Consumer online in the consumer group: [{header.group}]")
        members = list(group.members.values())
        check_versions(members)
        wanted = (header.client_addr or "").strip()  # in spite of its name a client id
        channels = [
            member.channel for member in members if wanted in ("", member.channel.client_id)
        ]
        question = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        tables = await asyncio.gather(*(_status_of(channel, question) for channel in channels))
        consumer_table = {
            channel.client_id: table
            for channel, table in zip(channels, tables, strict=True)
            if table is not None
        }
        return success(request, body=GetConsumerStatusBody(consumer_table=consumer_table))


async def _status_of(
    channel: ClientChannel, question: GetConsumerStatusRequestHeader
) -> dict[MessageQueue, int] | None:
    command = Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=encode_ext(question))
    try:
        answer = await channel.peer.call(command, STATUS_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS or answer.body is None:
            return None
        return decode_body(GetConsumerStatusBody, answer.body).message_queue_table
    except (TransportError, RemoteProtocolError) as error:
        logger.warning("%s does not report its offsets: %s", channel, error)
        return None


def _forwarded(request: Command) -> dict[str, str]:
    return {name: value for name, value in (request.ext or {}).items() if name not in CREDENTIALS}

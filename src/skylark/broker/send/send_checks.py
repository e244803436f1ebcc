"""Before a message is stored: the checks of its header, in Java's order, and what it gets from us.

Sends (:mod:`skylark.broker.send.handlers`) and replies (:mod:`skylark.broker.send.reply_handlers`)
pass the same checks. They look at the header alone; a missing topic is created here. What is
refused because of overload, or because this broker is a slave, does not get here
(:mod:`skylark.broker.overload.overload_guard`).

Every message is given the region of the broker and whether traces are wanted, as properties, and
every answer has both as ext fields. They follow the live settings, and are made anew only when
these change: this is on the hot path. A queue id below 0 gets the queues in turn; Java draws one.

Counterpart of ``AbstractSendMessageProcessor.msgCheck`` and ``buildMsgContext``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Final

import msgspec

from skylark.broker.api import Peer
from skylark.broker.config import BrokerConfig
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import TopicTable, describe
from skylark.core.clock import TimeSource
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    NoPermissionError,
    TopicNotExistError,
)
from skylark.core.names import Address, send_problem, topic_problem
from skylark.net.success_response import FAQ_HINT
from skylark.store.commit_log import Draft
from skylark.wire import properties as names
from skylark.wire.bodies.config import TopicConfig, TopicFilterType
from skylark.wire.codes import Perm, RequestCode
from skylark.wire.command import Command
from skylark.wire.headers.send import (
    EXT_MSG_REGION,
    EXT_TRACE_ON,
    SendHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from skylark.wire.layout import FLAG_MULTI_TAGS

SENDABLE_MAX: Final = 10_000  # names that are kept as checked
_LONG_NAMES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})


def send_header(request: Command) -> SendHeader:
    """The header of a send or of a reply, which has long names or letters, by the code."""
    if request.code in _LONG_NAMES:
        return request.header(SendMessageRequestHeader)
    return request.header(SendMessageRequestHeaderV2)


class Extra(msgspec.Struct, gc=False):
    """What is to be done when a message is stored that is more than a plain one."""

    #: The topic that a half message belongs to.
    half_of: str | None = None
    #: Of a half message whose commit asks for nothing but the copy: how many bytes of its property
    #: string the final message has (:func:`turn_into_half`). Else 0.
    final_size: int = 0
    #: Group, and topic of origin, of a message that the broker made a dead letter.
    dead_letter_of: tuple[str, str] | None = None
    recall_handle: str | None = None
    batch_unique_id: str | None = None


class SendDraft(Draft, gc=False):
    """The message of a send on its way into the log, and what its result needs."""

    #: The queue id of the result: what the producer asked for, wherever the message goes.
    asked_queue_id: int = 0
    unique_id: str = ""
    extra: Extra | None = None


class SendChecks:
    """Validates a send against the current settings."""

    def __init__(self, live: LiveSettings, topics: TopicTable, clock: TimeSource) -> None:
        self._topics = topics
        self._clock = clock
        self._turns = count()
        self._sendable: set[str] = set()  # names of topics that were found right
        self._prepare(live.current)
        live.follow(self._prepare)

    def _prepare(self, config: BrokerConfig) -> None:
        trace_on = "true" if config.trace_on else "false"
        #: The settings that all of this follows.
        self.config = config
        #: Ext fields of every answer.
        self.ext = {EXT_TRACE_ON: trace_on, EXT_MSG_REGION: config.region_id}
        #: Properties of every message.
        self.added = {
            names.PROPERTY_MSG_REGION: config.region_id,
            names.PROPERTY_TRACE_ON: trace_on,
        }
        #: Those of a message that is not a reply, and the same as a property string.
        self.added_to_sends = {**self.added, names.PROPERTY_CLUSTER: config.broker_cluster_name}
        self.added_text = names.encode_properties(self.added_to_sends)

    def topic_of(self, peer: Peer, header: SendHeader) -> TopicConfig:
        """The topic of a send, created if need be; raises BrokerError where it may not be sent."""
        config = self.config
        start_ms = config.start_accept_send_request_time_stamp
        if start_ms and self._clock.now_ms() < start_ms:
            raise BrokerError(f"broker unable to service, until {_local_time(start_ms)}")
        topic = self._topics.get(header.topic)
        if not config.broker_permission & Perm.WRITE and topic is not None and topic.order:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        if topic is None or header.topic not in self._sendable:
            # Also where the topic exists: the broker itself makes some that nobody may send to.
            if (problem := topic_problem(header.topic)) is not None:
                raise InvalidParameterError(problem)
            if (problem := send_problem(header.topic)) is not None:
                raise NoPermissionError(problem)
            if topic is None:
                topic = self._create(header)
            if len(self._sendable) >= SENDABLE_MAX:
                self._sendable.clear()
            self._sendable.add(header.topic)
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise InvalidParameterError(
                f"request queueId[{header.queue_id}] is illegal, {describe(topic)}"
                f" Producer: {Address(*peer.remote_address)}"
            )
        return topic

    def _create(self, header: SendHeader) -> TopicConfig:
        topic = self._topics.create_on_send(
            header.topic,
            default_topic=header.default_topic,
            queue_count=header.default_topic_queue_nums,
            unit_mode=header.unit_mode or False,
        )
        if topic is None:
            raise TopicNotExistError(
                f"topic[{header.topic}] not exist, apply first please!{FAQ_HINT}"
            )
        return topic

    def draft(self, peer: Peer, header: SendHeader, topic: TopicConfig, body: bytes) -> SendDraft:
        """The message as it will be stored, but for its properties."""
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = next(self._turns) % max(1, topic.write_queue_nums)
        sys_flag = header.sys_flag
        if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= FLAG_MULTI_TAGS
        return SendDraft(
            header.topic, queue_id, body, b"", header.flag, sys_flag, header.born_timestamp,
            peer.born_host, header.reconsume_times or 0, asked_queue_id=queue_id,
        )  # fmt: skip


def _local_time(time_ms: int) -> str:
    try:
        local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):  # some year without a name: "never" is meant
        return f"{time_ms} ms"
    return f"{local:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03d}"

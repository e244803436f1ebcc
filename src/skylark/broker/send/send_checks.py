"""Validates sends by their headers, in Java's order, and makes their drafts.

Sends (:mod:`skylark.broker.send.handlers`) and replies (:mod:`skylark.broker.send.reply_handlers`)
pass the same checks. They check the header only, and create a missing topic. Requests that are
refused because of overload, or because this broker is a slave, do not get here
(:mod:`skylark.broker.overload.overload_guard`).

Every message gets the region of the broker and the trace switch as properties, and every response
has both as ext fields. They are computed when the settings change, not per message. A queue id
below 0 selects the queues in turn; Java selects one at random.

Counterpart of ``AbstractSendMessageProcessor.msgCheck`` and ``buildMsgContext``.
"""

from __future__ import annotations

from collections.abc import Callable
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

#: Called for each dead letter with its group and the topic that it was first sent to.
OnDeadLetter = Callable[[str, str], None]

SENDABLE_MAX: Final = 10_000  # cached names of valid topics
_LONG_NAMES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})


def send_header(request: Command) -> SendHeader:
    """The header of a send or reply; the code decides whether its fields have long names."""
    if request.code in _LONG_NAMES:
        return request.header(SendMessageRequestHeader)
    return request.header(SendMessageRequestHeaderV2)


class Extra(msgspec.Struct, gc=False):
    """Data for the result of a half message, dead letter, timed message or batch."""

    #: The real topic of a half message.
    half_of: str | None = None
    #: For a half message whose commit is a plain copy: the size of the properties of its final
    #: message (:func:`turn_into_half`). Else 0.
    final_size: int = 0
    #: Group, and original topic, of a message that the broker made a dead letter.
    dead_letter_of: tuple[str, str] | None = None
    recall_handle: str | None = None
    batch_unique_id: str | None = None


class SendDraft(Draft, gc=False):
    """Draft of a sent message, and the data for its result."""

    #: The queue id of the result: the one in the request, wherever the message is stored.
    requested_queue_id: int = 0
    unique_id: str = ""
    extra: Extra | None = None


class SendChecks:
    """Validates a send against the current settings."""

    def __init__(self, live: LiveSettings, topics: TopicTable, clock: TimeSource) -> None:
        self._topics = topics
        self._clock = clock
        self._turns = count()
        self._sendable: set[str] = set()  # names of valid topics
        self._prepare(live.current)
        live.changes.subscribe(self._prepare)

    def _prepare(self, config: BrokerConfig) -> None:
        trace_on = "true" if config.trace_on else "false"
        #: The current settings.
        self.config = config
        #: Ext fields of every response.
        self.ext = {EXT_TRACE_ON: trace_on, EXT_MSG_REGION: config.region_id}
        #: Properties of every message.
        self.added = {
            names.PROPERTY_MSG_REGION: config.region_id,
            names.PROPERTY_TRACE_ON: trace_on,
        }
        #: Properties of every message that is not a reply, and the same as a property string.
        self.added_to_sends = {**self.added, names.PROPERTY_CLUSTER: config.broker_cluster_name}
        self.added_text = names.encode_properties(self.added_to_sends)

    def topic_of(self, peer: Peer, header: SendHeader) -> TopicConfig:
        """The topic of a send, created if missing; raises BrokerError if the send is forbidden."""
        config = self.config
        start_ms = config.start_accept_send_request_time_stamp
        if start_ms and self._clock.now_ms() < start_ms:
            raise BrokerError(f"broker unable to service, until {_local_time(start_ms)}")
        topic = self._topics.get(header.topic)
        if not config.broker_permission & Perm.WRITE and topic is not None and topic.order:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        if topic is None or header.topic not in self._sendable:
            # Also for existing topics: clients may not send to some topics of the broker.
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
        """Draft of the message, without its properties."""
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = next(self._turns) % max(1, topic.write_queue_nums)
        sys_flag = header.sys_flag
        if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= FLAG_MULTI_TAGS
        return SendDraft(
            header.topic, queue_id, body, b"", header.flag, sys_flag, header.born_timestamp,
            peer.born_host, header.reconsume_times or 0, requested_queue_id=queue_id,
        )  # fmt: skip

    def transactions_forbidden(self) -> BrokerError:
        """The error for half messages with ``rejectTransactionMessage``."""
        address = self.config.broker_ip1
        return NoPermissionError(f"the broker[{address}] sending transaction message is forbidden")


def _local_time(time_ms: int) -> str:
    try:
        local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):  # a year out of range, set to mean "never"
        return f"{time_ms} ms"
    return f"{local:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03d}"

"""Recall of timed messages before they are due: RECALL_MESSAGE (370), and the recall handle.

The reply to a timed send has a handle: base64 of ``v1 TOPIC BROKER TIME UNIQUE_ID``. A recall
stores another timed message for the same slot, a mark with ``TIMER_DEL_UNIQKEY``; when the slot is
due, the timer reads the marks first and drops the messages that they name. The time in the handle
is one millisecond after the start of the slot, so that rounding leads to the same slot.

The broker does not search for the message: it also accepts the handle of a message that never
existed. A recall within the last second before the slot is due may come too late. Off unless
``recallMessageEnable`` is set, as in Java.

Counterpart of Java's ``RecallMessageProcessor`` and ``RecallMessageHandle``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from skylark.broker.api import (
    Peer,
    Pending,
    PutService,
    RecallRequest,
    RecallResult,
    result_of,
)
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, LocalProtocolError, broker_error
from skylark.core.names import RETRY_PREFIX
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.store.commit_log import Draft
from skylark.store.config import BrokerRole
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.codes import Perm, RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.send import (
    EXT_MSG_REGION,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)

RECALL_TAG: Final = "_RECALL_TAG_"
HANDLE_VERSION: Final = "v1"
FAILED: Final = "recall failed, execute error"
_BODY: Final = b"0"
_TIME_DIGITS_MAX: Final = 18


class RecallHandle(NamedTuple):
    """The fields of a handle; the time is text, because clients can write anything there."""

    topic: str
    broker_name: str
    time_text: str
    unique_id: str

    def encode(self) -> str:
        """The handle as clients get it."""
        text = " ".join((HANDLE_VERSION, *self))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Read a handle; raises BrokerError (604) for other text."""
        try:
            padded = handle.encode("ascii") + b"=" * (-len(handle) % 4)  # Java asks for none
            raw = base64.b64decode(padded, altchars=b"-_", validate=True)
            parts = raw.decode("utf-8", "replace").split(" ")
        except (UnicodeEncodeError, binascii.Error):
            parts = []
        if len(parts) < 5 or parts[0] != HANDLE_VERSION:
            _refuse(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        return cls(*parts[1:5])


def recall_handle(properties: Mapping[str, str], broker_name: str) -> str | None:
    """The handle of a message that was sent to the timer; None for others, and for retries."""
    text = properties.get(names.PROPERTY_TIMER_OUT_MS)
    topic = properties.get(names.PROPERTY_REAL_TOPIC)
    unique_id = properties.get(names.PROPERTY_UNIQ_KEY)
    if text is None or topic is None or unique_id is None or topic.startswith(RETRY_PREFIX):
        return None
    if not text.isdecimal() or len(text) > _TIME_DIGITS_MAX:  # sent so by the client itself
        return None
    return RecallHandle(topic, broker_name, str(int(text) + 1), unique_id).encode()


class RecallHandlers:
    """The remoting request that recalls timed messages; each reply has the ext field MSG_REGION."""

    def __init__(self, live: LiveSettings, puts: PutService) -> None:
        self._live = live
        self._puts = puts

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_cold(RequestCode.RECALL_MESSAGE, self.recall)

    async def recall(self, connection: Connection, command: Command) -> Command:
        """RECALL_MESSAGE (370)."""
        ext = {EXT_MSG_REGION: self._live.current.region_id}
        request = RecallRequest(decode_ext(RecallMessageRequestHeader, command.ext))
        try:
            result = await result_of(self._puts.run(connection, [request])[0])
        except BrokerError as error:
            return response_to(command, error.code, str(error), ext=ext)
        header = RecallMessageResponseHeader(msg_id=result.unique_id)
        return response_to(command, ResponseCode.SUCCESS, ext=ext | encode_ext(header))


@dataclass(eq=False)
class RecallStep:
    """The part of the pipeline that is about recalls: stores the recall marks."""

    _live: LiveSettings
    _writer: MessageWriter
    _topics: TopicTable
    _stats: BrokerStats
    _durability: Durability
    _clock: TimeSource

    def draft(self, peer: Peer, request: RecallRequest) -> Draft:
        """The mark to be stored; raises BrokerError."""
        handle = self._check(request.header)
        now_ms = self._clock.now_ms()
        properties = {
            names.PROPERTY_TAGS: RECALL_TAG,
            names.PROPERTY_TIMER_DEL_UNIQKEY: self._delete_key(handle),
            names.PROPERTY_UNIQ_KEY: handle.unique_id,
            names.PROPERTY_TIMER_DELIVER_MS: handle.time_text,
            names.PROPERTY_BORN_TIMESTAMP: str(now_ms),
        }
        if request.header.producer_group:
            properties[names.PROPERTY_PGROUP] = request.header.producer_group
        draft = Draft(handle.topic, 0, _BODY, born_timestamp=now_ms, born_host=peer.born_host)
        try:
            refused = self._writer.prepare_own(draft, properties)
        except LocalProtocolError as error:  # a separator in the handle, or in the group
            _refuse(ResponseCode.SYSTEM_ERROR, FAILED, hint=str(error))
        if refused is not None:
            _refuse(ResponseCode.SYSTEM_ERROR, FAILED, hint=refused.name)
        return draft

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """The checks, in Java's order."""
        config, now_ms = self._live.current, self._clock.now_ms()
        unavailable = "recall failed, broker service not available"
        if not config.recall_message_enable:
            _refuse(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden",
                hint="set recallMessageEnable=true",
            )
        if config.store.broker_role is BrokerRole.SLAVE:
            _refuse(ResponseCode.SLAVE_NOT_AVAILABLE, unavailable)
        if now_ms < config.start_accept_send_request_time_stamp or not (
            config.broker_permission & Perm.WRITE or config.allow_recall_when_broker_not_writeable
        ):
            _refuse(ResponseCode.SERVICE_NOT_AVAILABLE, unavailable)
        if self._topics.get(header.topic) is None:
            remark = f"recall failed, the topic[{header.topic}] not exist"
            _refuse(ResponseCode.TOPIC_NOT_EXIST, remark)
        handle = RecallHandle.decode(header.recall_handle)
        if header.topic != handle.topic:
            _refuse(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            _refuse(ResponseCode.ILLEGAL_OPERATION, unavailable)
        text = handle.time_text
        is_time = text.isdecimal() and len(text) <= _TIME_DIGITS_MAX
        left_ms = int(text) - now_ms if is_time else -1
        if not 0 < left_ms < config.timer_max_delay_sec * 1_000:
            _refuse(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _delete_key(self, handle: RecallHandle) -> str:
        """Java before 5.5 writes and knows only the longer form; the timer here knows both."""
        if self._live.current.append_topic_for_timer_delete_key:
            return f"{handle.topic}+{handle.unique_id}"
        return handle.unique_id

    def finish(
        self, request: RecallRequest, draft: Draft, result: PutResult, *, is_durable: bool
    ) -> RecallResult | Pending[RecallResult]:
        """The outcome of a mark that was stored, or not; raises BrokerError."""
        if not result.status.stored:
            _refuse(ResponseCode.SYSTEM_ERROR, FAILED, hint=result.status.name)
        is_system = self._topics.is_system(draft.topic)
        self._stats.put(draft.topic, result.message_count, result.size, is_system=is_system)
        outcome = RecallResult(RecallHandle.decode(request.header.recall_handle).unique_id)
        if is_durable:
            return outcome
        return self._durability.when_durable(result, lambda _status: outcome)


def _refuse(code: ResponseCode, remark: str, hint: str | None = None) -> NoReturn:
    raise broker_error(code, remark, hint=hint)

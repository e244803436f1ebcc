"""Hooks that record the trace of a message: sent, given to a handler, committed.

A client calls them besides the hooks of the application if ``trace`` is on. They append records to
the :class:`~skylark.client.trace.trace_dispatcher.TraceDispatcher` of the client.

* A send gives a ``Pub`` record when the message is stored, unless the broker disables traces
  (``TRACE_ON``). A failed attempt gives none. Each message of a batch has a record; Java writes one
  for all, with their ids in a row. ``body_size`` is that of the uncompressed body.
* A handler call gives ``SubBefore`` and ``SubAfter`` for each of its messages, with one request id
  for all, except for messages with ``TRACE_ON`` = ``false``.
* The decision of a transaction gives ``EndTransaction``.

Messages to the trace topic itself are not traced. Counterpart of Java's
``SendMessageTraceHookImpl``, ``ConsumeMessageTraceHookImpl`` and ``EndTransactionTraceHookImpl``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from skylark.client.consumer.push.concurrent_settlement import ReturnType
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import KEY_SEPARATOR, Message, MessageExt, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.hooks import ConsumeContext, EndTransactionContext, SendContext
from skylark.client.producer.send_request import DEFAULT_REGION, unique_id_generator
from skylark.client.trace.trace_dispatcher import TraceContext, TraceDispatcher, TraceSink
from skylark.client.trace.trace_records import (
    NULL,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceMessageType,
)
from skylark.core.clock import TimeSource
from skylark.core.hashing import UniqueIdGenerator
from skylark.wire.properties import PROPERTY_MSG_REGION, PROPERTY_TRACE_ON

_BEGUN: Final = "skylark.trace"  # key in the values of a context

MESSAGE_TYPES: Final = {
    "Normal": TraceMessageType.NORMAL,
    "Trans_Half": TraceMessageType.TRANSACTION_HALF,
    "Delay": TraceMessageType.DELAY,
    "Order": TraceMessageType.ORDER,
}
CONTEXT_CODES: Final = {kind.name.replace("RETURN_NULL", "RETURNNULL"): kind for kind in ReturnType}


class ProducerTraceHook:
    """Traces the sends and the transactions of a producer."""

    def __init__(self, sink: TraceSink, clock: TimeSource) -> None:
        self._sink = sink
        self._clock = clock

    def before_send(self, context: SendContext) -> None:
        context.values[_BEGUN] = self._clock.now_ms()

    def after_send(self, context: SendContext) -> None:
        result, message, began_ms = context.result, context.message, context.values.get(_BEGUN)
        if (
            result is None
            or not result.trace_on
            or not isinstance(began_ms, int)
            or message.topic.startswith(self._sink.topic)
        ):
            return
        record = PubTrace(
            time_ms=began_ms,
            region_id=result.region_id,
            group=context.group,
            topic=message.topic,
            msg_id=result.msg_id,
            tags=message.tag,
            keys=_keys(message),
            store_host=context.broker_address,
            body_size=len(message.body),
            cost_ms=max(0, self._clock.now_ms() - began_ms),
            message_type=MESSAGE_TYPES[context.message_type],
            offset_msg_id=result.offset_msg_id or "",
            success=result.status is SendStatus.SEND_OK,
        )
        self._sink.append(TraceContext(message.topic, result.region_id, (record,)))

    def end_transaction(self, context: EndTransactionContext) -> None:
        message = context.message
        if message.topic.startswith(self._sink.topic):
            return
        region_id = message.properties.get(PROPERTY_MSG_REGION) or DEFAULT_REGION
        record = EndTransactionTrace(
            time_ms=self._clock.now_ms(),
            region_id=region_id,
            group=context.group,
            topic=message.topic,
            msg_id=context.msg_id,
            tags=message.tag,
            keys=_keys(message),
            store_host=context.broker_address,
            transaction_id=context.transaction_id or NULL,
            state=context.state.value,
            from_check=context.from_check,
        )
        self._sink.append(TraceContext(message.topic, region_id, (record,)))


class ConsumerTraceHook:
    """Traces the handler calls of a consumer; several threads may call it."""

    def __init__(self, sink: TraceSink, clock: TimeSource, request_ids: UniqueIdGenerator) -> None:
        self._sink = sink
        self._clock = clock
        self._request_ids = request_ids
        self._lock = threading.Lock()

    def before_consume(self, context: ConsumeContext) -> None:
        traced = [each for each in context.messages if _is_traced(each)]
        if not traced:
            return
        now_ms = self._clock.now_ms()
        with self._lock:
            request_id = self._request_ids.next_id()
        # Messages of a split batch have no region: Java prints that, too.
        region_id = traced[0].properties.get(PROPERTY_MSG_REGION) or NULL
        context.values[_BEGUN] = _Begun(now_ms, request_id, region_id, traced)
        self._append(
            traced[0].topic,
            region_id,
            [
                SubBeforeTrace(
                    time_ms=now_ms,
                    region_id=region_id,
                    group=context.group,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retry_times=message.reconsume_times,
                    keys=_keys(message),
                )
                for message in traced
            ],
        )

    def after_consume(self, context: ConsumeContext) -> None:
        begun = context.values.get(_BEGUN)
        if not isinstance(begun, _Begun):
            return
        now_ms = self._clock.now_ms()
        code = CONTEXT_CODES.get(context.return_type or "", ReturnType.SUCCESS)
        is_cloud = self._sink.is_cloud
        self._append(
            begun.messages[0].topic,
            begun.region_id,
            [
                SubAfterTrace(
                    request_id=begun.request_id,
                    msg_id=message.msg_id,
                    cost_ms=max(0, now_ms - begun.time_ms) // len(context.messages),
                    success=context.success,
                    keys=_keys(message),
                    context_code=code,
                    time_ms=None if is_cloud else now_ms,
                    group=None if is_cloud else context.group,
                )
                for message in begun.messages
            ],
        )

    def _append(
        self, topic: str, region_id: str, records: list[SubBeforeTrace] | list[SubAfterTrace]
    ) -> None:
        self._sink.append(TraceContext(topic, region_id, records))


def consumer_tracing(
    instance: ClientInstance, options: ClientOptions, group: str
) -> tuple[TraceDispatcher, ConsumerTraceHook]:
    """The started trace dispatcher of a consumer, and its hook; the caller stops it."""
    clock = instance.runtime.clock
    dispatcher = TraceDispatcher(instance.runtime, options, group, "CONSUME")
    dispatcher.start()
    return dispatcher, ConsumerTraceHook(dispatcher, clock, unique_id_generator(options, clock))


class _Begun(NamedTuple):
    """Data from before a handler call, for the record after it."""

    time_ms: int
    request_id: str
    region_id: str
    messages: Sequence[MessageExt]


def _is_traced(message: MessageExt) -> bool:
    return message.properties.get(PROPERTY_TRACE_ON) != "false"


def _keys(message: Message | MessageExt) -> str | None:
    """As Java shows them: one text, or null."""
    if not message.keys:
        return None
    return message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)

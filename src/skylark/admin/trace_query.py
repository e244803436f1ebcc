"""Reads the trace records of a message from the trace topic.

The index of the trace topic has the unique id of the message as a key
(:mod:`skylark.client.trace.trace_records` defines the records). The records before and after one
call of a handler share a request id; they may be in different messages of the trace topic, or one
may be missing, because the consumer died or has not sent it yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.errors import NotFoundError
from skylark.admin.message_lookup import by_key
from skylark.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    decode_traces,
)
from skylark.core.errors import RemoteProtocolError

#: Maximum number of messages of the trace topic to read.
COUNT_MAX: Final = 64


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a handler; ``before`` or ``after`` is None if that record was not found."""

    request_id: str
    before: SubBeforeTrace | None = None
    after: SubAfterTrace | None = None

    @property
    def group(self) -> str | None:
        for trace in (self.before, self.after):
            if trace is not None and trace.group:
                return trace.group
        return None

    @property
    def time_ms(self) -> int:
        if self.before is not None:
            return self.before.time_ms
        return self.after.time_ms or 0 if self.after is not None else 0


class MessageTrace(msgspec.Struct, frozen=True, kw_only=True):
    """All trace records of a message, each kind by time."""

    msg_id: str
    sends: tuple[PubTrace, ...] = ()
    transactions: tuple[EndTransactionTrace, ...] = ()
    deliveries: tuple[Delivery, ...] = ()


async def message_trace(session: Session, message_id: str, trace_topic: str) -> MessageTrace:
    """Read and sort the trace records of a message; raises NotFoundError if there are none."""
    found = await by_key(session, trace_topic, message_id, count_max=COUNT_MAX)
    traces: list[Trace] = []
    for message in found:
        try:
            traces += decode_traces(message.body.decode("utf-8", "replace"))
        except RemoteProtocolError:  # skip records that cannot be decoded
            continue
    ours = [trace for trace in traces if trace.msg_id == message_id]
    if not ours:
        raise NotFoundError(
            f"{trace_topic} has no trace of message {message_id}",
            hint="producer and consumer need trace=True, and the broker traceTopicEnable",
        )
    return arrange(message_id, ours)


def arrange(message_id: str, traces: Iterable[Trace]) -> MessageTrace:
    """Sort the records of one message by kind and time, and pair before and after."""
    sends: list[PubTrace] = []
    transactions: list[EndTransactionTrace] = []
    deliveries: dict[str, Delivery] = {}
    for trace in dict.fromkeys(traces):  # a trace message that was sent twice repeats its records
        if isinstance(trace, PubTrace):
            sends.append(trace)
        elif isinstance(trace, EndTransactionTrace):
            transactions.append(trace)
        elif isinstance(trace, SubBeforeTrace | SubAfterTrace):
            known = deliveries.get(trace.request_id) or Delivery(request_id=trace.request_id)
            part = "before" if isinstance(trace, SubBeforeTrace) else "after"
            deliveries[trace.request_id] = msgspec.structs.replace(known, **{part: trace})
    return MessageTrace(
        msg_id=message_id,
        sends=tuple(sorted(sends, key=lambda trace: trace.time_ms)),
        transactions=tuple(sorted(transactions, key=lambda trace: trace.time_ms)),
        deliveries=tuple(sorted(deliveries.values(), key=lambda delivery: delivery.time_ms)),
    )

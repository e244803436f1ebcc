"""Locks on queues for orderly consumption (41, 42). Counterpart of Java's ``LockBatch*Body``."""

from __future__ import annotations

import msgspec

from skylark.wire.bodies.common_body import Body, MessageQueue


class LockBatchRequestBody(Body, kw_only=True):
    """Queues that a client wants for itself (41)."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)


class LockBatchResponseBody(Body, kw_only=True):
    """Those that it got."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class UnlockBatchRequestBody(Body, kw_only=True):
    """Queues that a client gives back (42)."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)

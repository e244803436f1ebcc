"""Locks on queues for consumption in order: ask for or renew (41), give back (42).

Only this broker is asked: ``lockInStrictMode``, in which a majority of the replicas has to agree,
is not supported, so ``onlyThisBroker`` makes no difference. Answers to ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable

from skylark.broker.groups.queue_locks import QueueLocks
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.wire.bodies.lock import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body


class LockHandlers:
    """The requests about queue locks."""

    def __init__(self, locks: QueueLocks, now_ms: Callable[[], int]) -> None:
        """``now_ms`` is the time of
        :class:`~skylark.broker.groups.client_liveness.ClientLiveness`."""
        self._locks = locks
        self._now_ms = now_ms

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.LOCK_BATCH_MQ, self.lock)
        dispatcher.add_hot(RequestCode.UNLOCK_BATCH_MQ, self.unlock)

    def lock(self, _connection: Connection, request: Command) -> Command:
        """LOCK_BATCH_MQ (41)."""
        wanted = decode_body(LockBatchRequestBody, request.body or b"")
        held = self._locks.lock(
            wanted.consumer_group, wanted.client_id, wanted.mq_set, self._now_ms()
        )
        return success(request, body=LockBatchResponseBody(lock_ok_mq_set=held))

    def unlock(self, _connection: Connection, request: Command) -> Command:
        """UNLOCK_BATCH_MQ (42)."""
        given = decode_body(UnlockBatchRequestBody, request.body or b"")
        self._locks.unlock(given.consumer_group, given.client_id, given.mq_set)
        return success(request)

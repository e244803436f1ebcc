"""Blocking clients, for threads: the names of :mod:`skylark.aio` without ``await``.

::

    from skylark import Message
    from skylark.sync import Producer

    with Producer("orders") as producer:
        producer.send(Message("T", b"hello"))

Any thread may call them at any time. They are a facade over the asyncio clients on one private
event loop thread, see :mod:`skylark.client.blocking`; :mod:`skylark` has the names that both share.
"""

from skylark.admin.blocking_admin import Admin
from skylark.admin.errors import NotFoundError, PartialFailureError
from skylark.client.blocking.blocking_consumers import (
    LitePullConsumer,
    PopConsumer,
    PoppedMessage,
    PullConsumer,
    PullSchedule,
    PullTask,
    PushConsumer,
)
from skylark.client.blocking.blocking_functions import MetricsEndpoint, read_arrow, serve_metrics
from skylark.client.blocking.blocking_producer import Producer, Transaction, TransactionListener
from skylark.client.consumer.pull_api import PullResult
from skylark.client.producer.transaction_producer import TransactionResult

__all__ = [
    "Admin",
    "LitePullConsumer",
    "MetricsEndpoint",
    "NotFoundError",
    "PartialFailureError",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullSchedule",
    "PullTask",
    "PushConsumer",
    "Transaction",
    "TransactionListener",
    "TransactionResult",
    "read_arrow",
    "serve_metrics",
]

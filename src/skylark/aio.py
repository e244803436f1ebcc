"""Clients for asyncio; each belongs to the event loop on which it is started.

::

    from skylark import Message
    from skylark.aio import Producer

    async with Producer("orders") as producer:
        await producer.send(Message("T", b"hello"))

:mod:`skylark.sync` has the same names without ``await``; :mod:`skylark` has the shared names.
"""

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError, PartialFailureError
from skylark.client.arrow.arrow_reader import read_arrow
from skylark.client.consumer.classic_pull_consumer import PullConsumer, PullSchedule, PullTask
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.consumer.pop.popped_message import PoppedMessage
from skylark.client.consumer.pull_api import PullResult
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.metrics_endpoint import MetricsEndpoint, serve_metrics
from skylark.client.producer.producer import Producer
from skylark.client.producer.transaction_producer import (
    Transaction,
    TransactionListener,
    TransactionResult,
)

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

"""Running info of a push consumer (307): settings, subscriptions, queues and rates for tools.

Settings go by Java's names, so that tools which know them show them. Counterpart of Java's
``DefaultMQPushConsumerImpl.consumerRunningInfo``.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Mapping

from skylark.client.consumer.offset_table import OffsetTable
from skylark.client.consumer.process_queue import FlowControl, ProcessQueue
from skylark.client.consumer.push.consumer_stats import ConsumerStats
from skylark.client.consumer.push.push_settings import PULL_BATCH_SIZE, PushSettings
from skylark.client.consumer.subscription import Subscription
from skylark.core.names import Address
from skylark.wire.bodies.admin_body import ConsumerRunningInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.codes import CURRENT_VERSION, version_name


def running_properties(
    group: str,
    settings: PushSettings,
    start_timestamp: str,
    *,
    is_orderly: bool,
    started_ms: int,
    name_servers: Iterable[Address],
) -> dict[str, str]:
    """All settings as text, and what tools look for besides."""
    found: Mapping[str, object] = {
        "consumerGroup": group,
        "messageModel": settings.message_model.value,
        "consumeFromWhere": settings.consume_from_where.value,
        "consumeTimestamp": start_timestamp,
        "allocateMessageQueueStrategy": settings.allocation.name,
        "consumeThreadMin": settings.concurrency,
        "consumeThreadMax": settings.concurrency,
        "consumeConcurrentlyMaxSpan": settings.consume_concurrently_max_span,
        "pullThresholdForQueue": settings.pull_threshold_for_queue,
        "pullThresholdSizeForQueue": settings.pull_threshold_size_for_queue,
        "pullThresholdForTopic": settings.pull_threshold_for_topic,
        "pullThresholdSizeForTopic": settings.pull_threshold_size_for_topic,
        "pullInterval": settings.pull_interval_ms,
        "pullBatchSize": settings.pull_batch_size or PULL_BATCH_SIZE,
        "pullBatchSizeInBytes": settings.pull_batch_size_in_bytes,
        "postSubscriptionWhenPull": settings.post_subscription_when_pull,
        "maxReconsumeTimes": settings.max_reconsume_times,
        "suspendCurrentQueueTimeMillis": settings.suspend_current_queue_time_ms,
        "consumeTimeout": settings.consume_timeout_ms // 60_000,
        "awaitTerminationMillisWhenShutdown": settings.await_termination_ms,
        "clientRebalance": True,
        "PROP_CONSUMEORDERLY": is_orderly,
        "PROP_THREADPOOL_CORE_SIZE": settings.concurrency,
        "PROP_CONSUMER_START_TIMESTAMP": started_ms,
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in name_servers),
        "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
        "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
    }
    return {name: _text(value) for name, value in found.items()}


def running_info(
    properties: dict[str, str],
    subscriptions: Iterable[Subscription],
    queues: Mapping[MessageQueue, ProcessQueue],
    offsets: OffsetTable,
    stats: ConsumerStats,
    flow: FlowControl,
    now_ms: int,
    *,
    with_stacks: bool,
) -> ConsumerRunningInfo:
    """The whole answer; may be made on another loop than the one that consumes."""
    subscriptions = tuple(subscriptions)
    properties = {**properties, "pullThresholdForQueue": str(flow.count_max)}
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=[each.data for each in subscriptions],
        mq_table={
            queue: process_queue.info(offsets.read(queue) or 0)
            for queue, process_queue in tuple(queues.items())
        },
        status_table={each.topic: stats.status(each.topic, now_ms) for each in subscriptions},
        jstack=thread_stacks() if with_stacks else None,
    )


def thread_stacks() -> str:
    """Where each thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

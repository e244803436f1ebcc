"""What the handlers of administrators' requests have in common.

A handler is a method that names its request code; a coroutine function is a *cold* handler
(:mod:`skylark.net.dispatch`)::

    class TopicHandlers(AdminHandlers):
        @handles(RequestCode.GET_TOPIC_CONFIG)
        def get(self, _connection: Connection, request: Command) -> Command: ...

All of them use the tables and services in :class:`BrokerParts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, TypeVar

from skylark.broker.delay.timer_service import TimerService
from skylark.broker.groups.consumer_filters import ConsumerFilterTable
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.queue_locks import QueueLocks
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import LoopWatch
from skylark.broker.pull.cold_reads import ColdReads
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.stats.stats_sampler import StatsSampler
from skylark.broker.table_saver import SavedTables, SettingsFile
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.net.dispatch import Dispatcher
from skylark.replication.replication_service import Replication
from skylark.store.file_system import FileSystem
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.common_body import Body, MessageQueue
from skylark.wire.bodies.stats import PoppedReport
from skylark.wire.codes import RequestCode

Method = TypeVar("Method", bound=Callable[..., Any])


class BrokerParts(NamedTuple):
    """The parts of a broker that administrators read and change."""

    live: LiveSettings
    settings_file: SettingsFile
    clock: Clock
    loop_watch: LoopWatch
    files: FileSystem
    store: MessageStore
    replication: Replication
    saved: SavedTables
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerTable
    producers: ProducerTable
    locks: QueueLocks
    filters: ConsumerFilterTable
    request_modes: RequestModes
    stats: BrokerStats
    sampler: StatsSampler
    cold_reads: ColdReads
    #: Messages of a topic, group and queue that were popped and are in flight.
    popped_count: Callable[[str, str, int], int]
    #: Finds the last pop of a message of a topic, group, queue and offset.
    popped_report: Callable[[str, str, int, int], Awaitable[PoppedReport | None]]
    #: None at a slave, and with ``timerWheelEnable=false``.
    timer: TimerService | None
    #: Returns, by delay level, up to where messages were delivered, and the end of the queue.
    delay_progress: Callable[[], Mapping[int, tuple[int, int]]]
    #: Returns the content of ``delayOffset.json``.
    delay_offsets: Callable[[], Body]
    #: Deletes the queues and counters of topics.
    delete_queues: Callable[[Collection[str]], None]
    #: Waits until the name servers have the topics, or until their timeout. This and
    #: ``register_all`` raise nothing for servers that do not answer.
    announced: Callable[[], Awaitable[None]]
    #: Registers all topics with all name servers, and waits for them.
    register_all: Callable[[], Awaitable[None]]


def handles(code: RequestCode) -> Callable[[Method], Method]:
    """Marks a method of :class:`AdminHandlers` as the handler of a request code."""

    def mark(method: Method) -> Method:
        method.__dict__["request_code"] = code
        return method

    return mark


class AdminHandlers:
    """Base of the classes with handlers, each about one noun."""

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        for name, function in vars(type(self)).items():
            code = getattr(function, "request_code", None)
            if code is not None:
                add = dispatcher.add_cold if iscoroutinefunction(function) else dispatcher.add_hot
                add(code, getattr(self, name))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        name = self._broker.live.current.broker_name
        return MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)

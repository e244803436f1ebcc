"""Validates the requests of pop consumers against the settings, their topic and their group.

The checks come in Java's order and have its codes and texts. A pop has its filter with it: the
consumer table keeps the subscription for some minutes, to answer administrators, because pop
consumers need not send heartbeats. Counterpart of the first half of Java's ``PopMessageProcessor``,
``PeekMessageProcessor``, ``NotificationProcessor`` and ``PollingInfoProcessor``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from skylark.broker.api import Peer
from skylark.broker.groups.consumer_filters import SQL92
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    NoPermissionError,
    ServiceNotAvailableError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.core.names import Address, pop_retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_eval import SqlFilter, compile_sql
from skylark.filter.tag import SUBSCRIBE_ALL, TagFilter, parse_tags
from skylark.net.success_response import FAQ_HINT
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.codes import Perm, ResponseCode

#: Messages of one pop; a peek that asks for more gets as many.
POP_COUNT_MAX: Final = 32
#: Characters of the name of a group that is not looked up; Java's ``CHARACTER_MAX_LENGTH``.
GROUP_NAME_MAX: Final = 255
PARSE_FAILED: Final = "parse the consumer's subscription failed"
#: Characters of the id of an attempt, which ordered consumption keeps and saves; clients send 36.
ATTEMPT_ID_MAX: Final = 1_024
#: Filters that are kept, so that most pops need not parse theirs.
FILTERS_KEPT_MAX: Final = 1_000
#: Characters of all these; a filter of tags takes some fifty times as many bytes.
FILTERS_SIZE_MAX: Final = 1 << 18
#: Characters of a filter that is noted for administrators.
NOTED_SIZE_MAX: Final = 4_096
#: How often the subscription of a pop is noted.
NOTED_INTERVAL_MS: Final = 60_000

_TAG_TYPES: Final = (None, "", "TAG")
# As a plain number: members of an enumeration are slower.
_READ: Final = int(Perm.READ)


class PopFilter(NamedTuple):
    """The filter of a pop: tags, SQL, or none."""

    tags: TagFilter | None = None
    sql: SqlFilter | None = None


_EVERYTHING: Final = PopFilter()


class _QueueRequest(Protocol):
    """The fields that the headers of all these requests have."""

    consumer_group: str
    topic: str
    queue_id: int


class PopChecks:
    """The checks of requests that read queues without owning them."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        clock: Clock,
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._clock = clock
        self._filters: dict[tuple[str | None, str], PopFilter] = {}
        self._filters_size = 0
        #: By group, topic, type of filter, and hash of the filter.
        self._noted: dict[tuple[str, str, str | None, int], int] = {}

    def broker(self, verb: str) -> None:
        """Raise BrokerError if nothing may be read here; ``verb`` for the remark."""
        config = self._live.current
        if not config.broker_permission & _READ:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] {verb} message is forbidden")

    def role(self) -> None:
        """Raise BrokerError if this broker cannot keep check-points."""
        config = self._live.current
        if config.is_slave:
            raise ServiceNotAvailableError(
                f"the broker[{config.broker_ip1}] is a slave, which cannot keep what was popped",
                hint="ask the master",
            )
        if not config.timer_wheel_enable:
            raise BrokerError(
                f"the broker[{config.broker_ip1}] pop message is forbidden because timerWheelEnable"
                " is false"
            )

    def count(self, count: int) -> None:
        """Raise BrokerError if a pop asks for too many messages."""
        if count > POP_COUNT_MAX:
            ip = self._live.current.broker_ip1
            raise InvalidParameterError(
                f"the broker[{ip}] pop message's num is greater than {POP_COUNT_MAX}"
            )

    def attempt(self, attempt_id: str | None) -> None:
        """Raise BrokerError for the id of an attempt that is too long to be kept."""
        if attempt_id is not None and len(attempt_id) > ATTEMPT_ID_MAX:
            raise InvalidParameterError(
                f"attemptId has {len(attempt_id)} characters, at most {ATTEMPT_ID_MAX} are possible"
            )

    def count_not_negative(self, count: int) -> None:
        """Raise BrokerError if a request asks for less than no messages."""
        if count < 0:
            ip = self._live.current.broker_ip1
            raise BrokerError(f"the broker[{ip}] cannot return {count} messages")

    def topic(self, peer: Peer, request: _QueueRequest) -> TopicConfig:
        """The topic of a request; raises BrokerError if it is not readable or lacks the queue."""
        topic = self._topics.get(request.topic)
        if topic is None:
            raise TopicNotExistError(
                f"topic[{request.topic}] not exist, apply first please! {FAQ_HINT}"
            )
        if not topic.perm & _READ:
            raise NoPermissionError(f"the topic[{request.topic}] peeking message is forbidden")
        if request.queue_id >= topic.read_queue_nums:
            raise InvalidParameterError(illegal_queue(peer, request, topic))
        return topic

    def group(self, name: str) -> SubscriptionGroupConfig:
        """The group of a request; raises BrokerError if it may not consume."""
        group = self._groups.find(name)
        if group is None:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{name}] does not exist, {FAQ_HINT}"
            )
        if not group.consume_enable:
            raise NoPermissionError(f"subscription group no permission, {name}")
        return group

    def group_name(self, name: str) -> None:
        """Raise BrokerError for a name that is too long for a group, as Java's group table does.

        Requests that do not look the group up (acks) call this: names are kept in memory.
        """
        if len(name) > GROUP_NAME_MAX:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{name[:GROUP_NAME_MAX]}...] does not exist, {FAQ_HINT}"
            )

    def filter(self, kind: str | None, expression: str | None) -> PopFilter:
        """The filter in a request; raises BrokerError if it cannot be read."""
        if not expression or (expression == SUBSCRIBE_ALL and kind in _TAG_TYPES):
            return _EVERYTHING
        key = (kind, expression)
        found = self._filters.get(key)
        if found is None:
            found = _parse(kind, expression)
            self._keep(key, found)
        return found

    def _keep(self, key: tuple[str | None, str], found: PopFilter) -> None:
        self._filters[key] = found
        self._filters_size += len(key[1])
        while len(self._filters) > FILTERS_KEPT_MAX or self._filters_size > FILTERS_SIZE_MAX:
            oldest = next(iter(self._filters))
            del self._filters[oldest]
            self._filters_size -= len(oldest[1])

    def note_subscription(
        self, group: str, topic: str, kind: str | None, expression: str | None
    ) -> None:
        """Keep the subscription of a pop in the consumer table, for administrators."""
        if expression is not None and len(expression) > NOTED_SIZE_MAX:
            return
        key, now_ms = (group, topic, kind, hash(expression)), self._clock.steady_ms()
        noted_ms = self._noted.get(key)
        if noted_ms is not None and now_ms - noted_ms < NOTED_INTERVAL_MS:
            return
        if noted_ms is None and len(self._noted) >= FILTERS_KEPT_MAX:
            del self._noted[next(iter(self._noted))]
        self._noted[key] = now_ms
        retry = pop_retry_topic(topic, group, v2=self._live.current.pop.enable_retry_topic_v2)
        for name, text in ((topic, expression or SUBSCRIBE_ALL), (retry, SUBSCRIBE_ALL)):
            data = SubscriptionData(
                topic=name,
                sub_string=text,
                sub_version=self._clock.now_ms(),
                expression_type=kind or "TAG",
            )
            if kind in _TAG_TYPES:
                tags = parse_tags(text)
                data.tags_set = list(tags.tags)
                data.code_set = sorted(tags.codes or ())
            self._consumers.compensate(group, data, now_ms)


def illegal_queue(peer: Peer, request: _QueueRequest, topic: TopicConfig) -> str:
    """The remark for a queue that a topic does not have."""
    return (
        f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}]"
        f" topicConfig.readQueueNums:[{topic.read_queue_nums}]"
        f" consumer:[/{Address(*peer.remote_address)}]"
    )


def _parse(kind: str | None, expression: str) -> PopFilter:
    try:
        if kind in _TAG_TYPES:
            return PopFilter(tags=parse_tags(expression))
        if kind == SQL92:
            return PopFilter(sql=compile_sql(expression))
    except FilterSyntaxError as error:
        hint = str(error)
    else:
        hint = f"the type {kind} is unknown; the types are TAG and {SQL92}"
    raise BrokerError(PARSE_FAILED, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, hint=hint)

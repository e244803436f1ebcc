"""Validates a pull against the current settings, its topic and its group, and finds its filter.

A refusal is a :class:`~skylark.core.errors.BrokerError`; if reading is forbidden, it has the reason
(:class:`PullForbiddenError`).

**Filter.** With sysFlag 4 the request has the filter, which the consumer table keeps for ten
minutes to answer queries for the subscriptions of the group. Without it, the group's members must
have sent a subscription in their heartbeats (24) that is as new as the client's (25); the same
holds for a compiled expression (27, 28).

An SQL expression in the request that does not compile is refused (23). Java delivers all messages
instead, also those that the client wanted to filter out.

Messages of a retry topic are not filtered by properties, except with ``filterSupportRetry``: then
each by its group's filter on its original topic. Counterpart of the first half of Java's
``PullMessageProcessor.processRequest`` and of ``ExpressionForRetryMessageFilter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from skylark.broker.api import Peer, PullRequest
from skylark.broker.groups.consumer_filters import SQL92, ConsumerFilterTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.core.names import BUILT_IN_GROUPS, Address, is_retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_eval import SqlFilter, compile_sql
from skylark.filter.tag import SUBSCRIBE_ALL, TagFilter, parse_tags
from skylark.net.success_response import FAQ_HINT
from skylark.store.queue_scan import PropertyMatcher
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.heartbeat import ConsumeType, SubscriptionData
from skylark.wire.codes import Perm, PullSysFlag, ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.properties import PROPERTY_RETRY_TOPIC, find_raw_property

PARSE_FAILED: Final = "parse the consumer's subscription failed"
# As plain numbers: members of an enumeration are slower.
_READ: Final = int(Perm.READ)
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)
_TAG_TYPES: Final = (None, "", "TAG")
_RETRY_TOPIC: Final = PROPERTY_RETRY_TOPIC.encode()

#: Groups of tools, to which ``rejectPullConsumerEnable`` does not apply.
MAY_ALWAYS_PULL: Final = frozenset(
    {*BUILT_IN_GROUPS, "DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"}
)

# Reasons that forbid reading, in a response with code 16
FORBIDDEN_BY_BROKER: Final = 1
FORBIDDEN_BY_GROUP: Final = 2
FORBIDDEN_BY_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4
FORBIDDEN_BY_SUBSCRIPTION: Final = 5


class PullForbiddenError(NoPermissionError):
    """Reading is forbidden; ``forbidden_type`` is the reason."""

    def __init__(self, remark: str, forbidden_type: int) -> None:
        super().__init__(remark)
        self.forbidden_type = forbidden_type


class PullFilter(NamedTuple):
    """The filter of a pull: tags, SQL, or none."""

    tags: TagFilter | None = None
    sql: SqlFilter | None = None
    retried: PropertyMatcher | None = None  # in place of ``sql``, in a retry topic


_EVERYTHING: Final = PullFilter(parse_tags(SUBSCRIBE_ALL))


class _RetriedFilter:
    """Filters a retry topic: each message by its group's filter on its original topic."""

    def __init__(self, filters: ConsumerFilterTable, group: str) -> None:
        self._filters = filters
        self._group = group

    def matches_raw(self, raw: bytes) -> bool:
        topic = find_raw_property(raw, _RETRY_TOPIC)
        found = topic and self._filters.get(topic.decode("utf-8", "replace"), self._group)
        return not found or found.sql.matches_raw(raw)


class PullChecks:
    """The checks of a pull; call :meth:`group`, :meth:`topic` and :meth:`filter` in this order."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        filters: ConsumerFilterTable,
        steady_ms: Callable[[], int],
    ) -> None:
        """``steady_ms`` is the time by which clients expire (``Clock.steady_ms``)."""
        self._live = live
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._filters = filters
        self._steady_ms = steady_ms

    def group(self, request: PullRequest) -> SubscriptionGroupConfig:
        """The group of a pull; raises BrokerError if it may not consume."""
        config, name = self._live.current, request.header.consumer_group
        if not config.broker_permission & _READ:
            remark = f"the broker[{config.broker_ip1}] pulling message is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_BROKER)
        if request.is_lite and not config.lite_pull_message_enable:
            remark = f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_BROKER)
        group = self._groups.find(name)
        if group is None:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{name}] does not exist, {FAQ_HINT}"
            )
        if not group.consume_enable:
            remark = f"subscription group no permission, {name}"
            raise PullForbiddenError(remark, FORBIDDEN_BY_GROUP)
        return group

    def topic(self, peer: Peer, header: PullMessageRequestHeader) -> TopicConfig:
        """The topic of a pull; raises BrokerError if it is not readable or has no such queue."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotExistError(
                f"topic[{header.topic}] not exist, apply first please! {FAQ_HINT}"
            )
        if not topic.perm & _READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise PullForbiddenError(remark, FORBIDDEN_BY_TOPIC)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameterError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queue_nums}]"
                f" consumer:[/{Address(*peer.remote_address)}]"
            )
        return topic

    def filter(
        self, peer: Peer, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> PullFilter:
        """The filter of a pull; raises BrokerError if there is none, or the group may not read."""
        if header.sys_flag & _SUBSCRIPTION:
            found = self._own(header)
        else:
            found = self._of_heartbeats(header, group)
        config = self._live.current
        if config.reject_pull_consumer_enable:
            self._check_consumer(peer, header)
        if config.filter_support_retry and found.sql is None and is_retry_topic(header.topic):
            retried = _RetriedFilter(self._filters, header.consumer_group)
            return PullFilter(found.tags, None, retried)
        return found

    def _check_consumer(self, peer: Peer, header: PullMessageRequestHeader) -> None:
        """Raise BrokerError unless the pull is of a member, for ``rejectPullConsumerEnable``."""
        name = header.consumer_group
        group = self._consumers.group(name)
        if name in MAY_ALWAYS_PULL or (
            group is not None
            and (group.consume_type is not ConsumeType.CONSUME_ACTIVELY or peer in group.members)
        ):
            return
        raise BrokerError(
            "the consumer's group info not exist, or the pull consumer is rejected by server."
            f"{FAQ_HINT}",
            code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
        )

    def _own(self, header: PullMessageRequestHeader) -> PullFilter:
        """The filter in the request."""
        text, kind = header.subscription or "", header.expression_type
        data = SubscriptionData(
            topic=header.topic,
            sub_string=text or "*",
            sub_version=header.sub_version,
            expression_type=kind or "TAG",
        )
        try:
            if kind in _TAG_TYPES:
                tags = parse_tags(text)
                data.tags_set = list(tags.tags)
                data.code_set = sorted(tags.codes or ())
                found = PullFilter(tags)
            else:
                self._check_property_filter(kind)
                if kind != SQL92:
                    _refuse(f"the type {kind} is unknown; the types are TAG and {SQL92}")
                found = PullFilter(sql=compile_sql(text))
        except FilterSyntaxError as error:
            _refuse(str(error))
        self._consumers.compensate(header.consumer_group, data, self._steady_ms())
        return found

    def _of_heartbeats(
        self, header: PullMessageRequestHeader, config: SubscriptionGroupConfig
    ) -> PullFilter:
        """The filter that the members of the group have sent in their heartbeats."""
        name, topic = header.consumer_group, header.topic
        group = self._consumers.group(name)
        if group is None:
            raise BrokerError(
                f"the consumer's group info not exist{FAQ_HINT}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if group.is_broadcasting and not config.consume_broadcast_enable:
            remark = f"the consumer group[{name}] can not consume by broadcast way"
            raise PullForbiddenError(remark, FORBIDDEN_BROADCAST)
        if not self._groups.may_read(name, topic):
            remark = f"the consumer group[{name}] is forbidden for topic[{topic}]"
            raise PullForbiddenError(remark, FORBIDDEN_BY_SUBSCRIPTION)
        data = group.subscriptions.get(topic)
        if data is None:
            raise BrokerError(
                f"the consumer's subscription not exist{FAQ_HINT}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if data.sub_version < header.sub_version:
            raise BrokerError(
                "the consumer's subscription not latest", code=ResponseCode.SUBSCRIPTION_NOT_LATEST
            )
        if data.expression_type in _TAG_TYPES:
            if data.sub_string == SUBSCRIBE_ALL:
                return _EVERYTHING
            return PullFilter(TagFilter.of_subscription(data.sub_string, data.code_set))
        found = self._filters.get(topic, name)
        if found is None:
            raise BrokerError(
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
                code=ResponseCode.FILTER_DATA_NOT_EXIST,
            )
        if found.client_version < header.sub_version:
            raise BrokerError(
                "the consumer's consumer filter data not latest",
                code=ResponseCode.FILTER_DATA_NOT_LATEST,
            )
        self._check_property_filter(data.expression_type)
        return PullFilter(sql=found.sql)

    def _check_property_filter(self, kind: str | None) -> None:
        if not self._live.current.enable_property_filter:
            raise BrokerError(
                f"The broker does not support consumer to filter message by {kind}",
                hint="set enablePropertyFilter=true",
            )


def _refuse(hint: str) -> NoReturn:
    raise BrokerError(PARSE_FAILED, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, hint=hint)

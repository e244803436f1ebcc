"""Validates a pull against the current settings, its topic and its group.

A refusal is a :class:`~skylark.core.errors.BrokerError`; if reading is forbidden, it has the
reason (:class:`~skylark.broker.pull.pull_filters.PullForbiddenError`).
"""

from __future__ import annotations

from typing import Final

from skylark.broker.api import Peer, PullRequest
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pull.pull_filters import (
    FORBIDDEN_BY_BROKER,
    FORBIDDEN_BY_GROUP,
    FORBIDDEN_BY_TOPIC,
    PullFilter,
    PullFilters,
    PullForbiddenError,
)
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    InvalidParameterError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.core.names import Address
from skylark.net.success_response import FAQ_HINT
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import Perm
from skylark.wire.headers.pull import PullMessageRequestHeader

# As a plain number: members of an enumeration are slower.
_READ: Final = int(Perm.READ)


class PullChecks:
    """The checks of a pull; call them in this order."""

    def __init__(
        self, live: LiveSettings, topics: TopicTable, groups: GroupTable, filters: PullFilters
    ) -> None:
        self._live = live
        self._topics = topics
        self._groups = groups
        self._filters = filters

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
        """The filter of a pull; raises BrokerError."""
        found = self._filters.find(header, group)
        if self._live.current.reject_pull_consumer_enable:
            self._filters.check_consumer(peer, header)
        return found

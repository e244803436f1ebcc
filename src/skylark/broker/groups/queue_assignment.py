"""Assigns the queues of a topic to the members of a group: the same result at every broker.

=================  ============================================================================
``AVG``            runs of neighbours: of 5 queues for 2 members the first gets 0, 1, 2
``AVG_BY_CIRCLE``  dealt out one by one: the first gets 0, 2, 4
=================  ============================================================================

A group that pops needs no queues of its own. Each member gets queue -1 of every broker, which
stands for all of its queues; or, with ``popShareQueueNum`` N, its own share and those of the N
members after it (:func:`allocate_pop`).

Members and queues are sorted, so every broker that knows them has the same result. A member that is
not in the list gets nothing. Counterpart of Java's ``AllocateMessageQueueAveragely``,
``AllocateMessageQueueAveragelyByCircle`` and ``QueryAssignmentProcessor``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from skylark.broker.api import Peer
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.table_saver import SavedTable, until_saved
from skylark.broker.topics.topic_routes import TopicRoutes
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    NoPermissionError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.core.names import is_retry_topic
from skylark.store import config_tables
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.bodies.pop_body import (
    MessageRequestMode,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)

logger = logging.getLogger(__name__)

#: Stands for all queues of a broker.
ANY_QUEUE: Final = -1

Share: TypeAlias = Callable[[Sequence[MessageQueue], int, int], list[MessageQueue]]


def _averagely(queues: Sequence[MessageQueue], member_count: int, index: int) -> list[MessageQueue]:
    size, rest = divmod(len(queues), member_count)
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def _by_circle(queues: Sequence[MessageQueue], member_count: int, index: int) -> list[MessageQueue]:
    return list(queues[index::member_count])


#: By the name that a client gives.
STRATEGIES: Final[dict[str, Share]] = {"AVG": _averagely, "AVG_BY_CIRCLE": _by_circle}


def allocate(
    strategy: str | None, queues: Iterable[MessageQueue], members: Iterable[str], member: str
) -> list[MessageQueue] | None:
    """The share of one member; None if the strategy is unknown."""
    share = STRATEGIES.get(strategy or "")
    if share is None:
        return None
    names = sorted(members)
    if member not in names:
        return []
    return share(sorted(queues), len(names), names.index(member))


def allocate_pop(
    strategy: str | None,
    queues: Iterable[MessageQueue],
    members: Iterable[str],
    member: str,
    share_count: int,
) -> list[MessageQueue] | None:
    """The queues that a member pops; None if the strategy is unknown."""
    names, ordered = sorted(members), sorted(queues)
    if STRATEGIES.get(strategy or "") is None:
        return None
    if share_count <= 0 or share_count >= len(names) - 1:
        return list(dict.fromkeys(_any_queue(queue) for queue in ordered))
    if member not in names:
        return []
    index = names.index(member)
    if len(names) > len(ordered):
        return [ordered[index % len(ordered)]] if ordered else []
    sharers = [names[(index + step) % len(names)] for step in range(share_count + 1)]
    shares = (allocate(strategy, ordered, names, sharer) or [] for sharer in sharers)
    return list(dict.fromkeys(queue for share in shares for queue in share))


def _any_queue(queue: MessageQueue) -> MessageQueue:
    return msgspec.structs.replace(queue, queue_id=ANY_QUEUE)


@dataclass(eq=False)
class AssignmentService:
    """Which queues a client consumes (400), and how its group gets the messages (401)."""

    _live: LiveSettings
    _topics: TopicTable
    _groups: GroupTable
    _consumers: ConsumerTable
    _modes: RequestModes
    _routes: TopicRoutes
    modes_saved: SavedTable[config_tables.MessageRequestModeTable]

    def mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """How a group gets the messages of a topic."""
        found = self._modes.get(topic, group)
        if found is not None and found.mode is not None:
            return found
        config = self._live.current.pop
        mode = MessageRequestMode[config.default_message_request_mode.name]
        if is_retry_topic(topic):
            mode = MessageRequestMode.PULL
        return SetMessageRequestModeRequestBody(
            topic=topic,
            consumer_group=group,
            mode=mode,
            pop_share_queue_num=config.default_pop_share_queue_num,
        )

    async def assign(
        self, question: QueryAssignmentRequestBody, mode: SetMessageRequestModeRequestBody
    ) -> list[MessageQueue] | None:
        """The queues of a client; None, if they cannot be determined: it keeps what it has.

        That is the case without a route, without members, and with an unknown strategy.
        """
        queues = await self._routes.read_queues(question.topic)
        if queues is None or question.message_model is MessageModel.BROADCASTING:
            return queues
        if not self._live.current.server_load_balancer_enable:
            return queues
        members = self._consumers.client_ids(question.consumer_group)
        if not members:
            return None
        strategy, member = question.strategy_name, question.client_id
        if mode.mode is MessageRequestMode.POP:
            return allocate_pop(strategy, queues, members, member, mode.pop_share_queue_num)
        return allocate(strategy, queues, members, member)

    async def set_mode(self, peer: Peer, mode: SetMessageRequestModeRequestBody) -> None:
        """Set how a group gets the messages of a topic; returns when it is on disk."""
        topic, group = mode.topic, mode.consumer_group
        if is_retry_topic(topic):
            raise NoPermissionError("retry topic is not allowed to set mode")
        if topic not in self._topics:
            raise TopicNotExistError(f"topic[{topic}] not exist")
        if self._groups.find(group) is None:
            raise SubscriptionGroupNotExistError("subscription group does not exist")
        self._modes.set(mode)
        logger.info(
            "%r set that group %s gets the messages of %s by %s", peer, group, topic, mode.mode
        )
        self.modes_saved.mark()
        await until_saved(self.modes_saved)

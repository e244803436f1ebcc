"""Topic routes: the queues of a topic on all brokers, fetched from the name servers and cached.

Only the assignment of queues to clients (400) needs them. A route is fetched when it is needed and
the cached one is older than ``loadBalancePollNameServerInterval`` (30 s); requests that need it
meanwhile wait for the same answer.

If no name server answers, the cached route stays. If the topic has no route, the cached one is
dropped, except that of a retry topic, which may not be registered yet. An unknown topic is fetched
again after :data:`RETRY_S`. A broker without name servers knows its own queues only.

Counterpart of Java's ``TopicRouteInfoManager``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import QUEUE_COUNT_MAX, TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import RemoteProtocolError, TransportError
from skylark.core.names import is_retry_topic
from skylark.net.client import RemotingClient
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.route_body import QueueData, TopicRouteData
from skylark.wire.codes import Perm, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import encode_ext
from skylark.wire.headers.route import GetRouteInfoRequestHeader

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 3.0
RETRY_S: Final = 1.0
TOPIC_COUNT_MAX: Final = 10_000


class _CachedRoute:
    """The route of one topic; the queues are None while they are unknown."""

    def __init__(self) -> None:
        self.queues: list[MessageQueue] | None = None
        self.due_at = float("-inf")  # when to ask again
        self.turn = asyncio.Lock()


class TopicRoutes:
    """Fetches routes from the name servers and caches them."""

    def __init__(
        self, live: LiveSettings, topics: TopicTable, client: RemotingClient, clock: TimeSource
    ) -> None:
        self._live = live
        self._topics = topics
        self._client = client
        self._clock = clock
        self._cache: dict[str, _CachedRoute] = {}

    async def read_queues(self, topic: str) -> list[MessageQueue] | None:
        """The readable queues, sorted; None if the topic is unknown."""
        addresses = [str(address) for address in self._live.current.namesrv_addresses]
        if not addresses:
            return self._own_queues(topic)
        cached = self._cache.get(topic)
        if cached is None:
            if len(self._cache) >= TOPIC_COUNT_MAX:
                del self._cache[next(iter(self._cache))]
            cached = self._cache[topic] = _CachedRoute()
        async with cached.turn:
            if self._clock.monotonic() >= cached.due_at:
                await self._refresh(topic, cached, addresses)
        return cached.queues

    async def _refresh(self, topic: str, cached: _CachedRoute, addresses: list[str]) -> None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        interval_s = self._live.current.load_balance_poll_name_server_interval / 1000
        for address in addresses:
            request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=encode_ext(header))
            try:
                answer = await self._client.call(address, request, CALL_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    route = decode_body(TopicRouteData, answer.body or b"")
                    cached.queues = _read_queues(topic, route.queue_datas)
                    cached.due_at = self._clock.monotonic() + interval_s
                    return
            except (TransportError, RemoteProtocolError) as error:
                logger.warning(
                    "cannot fetch the route of topic %s from name server %s: %s",
                    topic,
                    address,
                    error,
                )
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                if not is_retry_topic(topic):
                    cached.queues = None
                break
        cached.due_at = self._clock.monotonic() + RETRY_S

    def _own_queues(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        queues = QueueData(
            broker_name=self._live.current.broker_name,
            read_queue_nums=config.read_queue_nums,
            perm=config.perm,
        )
        return _read_queues(topic, [queues])


def _read_queues(topic: str, datas: list[QueueData]) -> list[MessageQueue]:
    return sorted(
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
        for data in datas
        if data.perm & Perm.READ
        for queue_id in range(min(data.read_queue_nums, QUEUE_COUNT_MAX))  # a longer route is cut
    )

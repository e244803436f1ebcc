"""Which queues a topic has on all brokers, as the name servers say.

Only the assignment of queues to clients (400) needs it. A topic is asked for when somebody needs
it and what is known of it is older than ``loadBalancePollNameServerInterval`` (30 s); whoever needs
it meanwhile waits for the same answer. Nothing is asked while nobody needs anything.

If no name server answers, what was known stays. If they say that the topic has no route, it is
forgotten, but a retry topic stays: it may be on its way there. A topic that is not known is asked
for again after :data:`RETRY_S`. A broker without name servers knows its own queues only.

Answers to Java's ``TopicRouteInfoManager``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import TopicTable
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

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 3.0
RETRY_S: Final = 1.0
TOPIC_COUNT_MAX: Final = 10_000
#: Queues of one topic on one broker that are believed.
QUEUE_COUNT_MAX: Final = 65_536


class _Known:
    """One topic; the queues are None while nobody knows them."""

    def __init__(self) -> None:
        self.queues: list[MessageQueue] | None = None
        self.due_at = float("-inf")  # when to ask again
        self.turn = asyncio.Lock()


class TopicRoutes:
    """Asks the name servers, and remembers."""

    def __init__(
        self, live: LiveSettings, topics: TopicTable, client: RemotingClient, clock: TimeSource
    ) -> None:
        self._live = live
        self._topics = topics
        self._client = client
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def read_queues(self, topic: str) -> list[MessageQueue] | None:
        """The queues that can be read, sorted; None if the topic is not known."""
        addresses = [str(address) for address in self._live.current.namesrv_addresses]
        if not addresses:
            return self._own_queues(topic)
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= TOPIC_COUNT_MAX:
                del self._known[next(iter(self._known))]
            known = self._known[topic] = _Known()
        async with known.turn:
            if self._clock.monotonic() >= known.due_at:
                await self._refresh(topic, known, addresses)
        return known.queues

    async def _refresh(self, topic: str, known: _Known, addresses: list[str]) -> None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        interval_s = self._live.current.load_balance_poll_name_server_interval / 1000
        for address in addresses:
            request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=encode_ext(header))
            try:
                answer = await self._client.call(address, request, CALL_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    route = decode_body(TopicRouteData, answer.body or b"")
                    known.queues = _read_queues(topic, route.queue_datas)
                    known.due_at = self._clock.monotonic() + interval_s
                    return
            except (TransportError, RemoteProtocolError) as error:
                log.warning("name server %s gives no route of %s: %s", address, topic, error)
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                if not is_retry_topic(topic):
                    known.queues = None
                break
        known.due_at = self._clock.monotonic() + RETRY_S

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
        for queue_id in range(min(data.read_queue_nums, QUEUE_COUNT_MAX))
    )

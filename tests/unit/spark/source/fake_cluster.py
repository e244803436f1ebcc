"""A cluster of two brokers for tests of the source, without sockets: what the source asks it."""

from __future__ import annotations

import json

from skylark.client.core.namespace import Namespace
from skylark.core.errors import NoNameServerError
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.route_body import BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command


def queue(queue_id: int, broker: str = "broker-a", topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


class FakeCalls:
    def __init__(self, session: FakeSession) -> None:
        self._session = session

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        self._session.asked.append("min")
        return 3

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        return 30


class FakeSession:
    """Two brokers with two queues each; tests take things away."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.namespace = Namespace("")
        self.calls = FakeCalls(self)
        self.asked: list[str] = []
        self.brokers = {"broker-a": "a:1", "broker-b": "b:1"}
        self.queue_count = 2
        self.topic_exists = True
        self.namesrv_answers = True
        self.stats: dict[str, Exception | None] = {}

    def wrap(self, name: str) -> str:
        return name

    def unwrap(self, name: str) -> str:
        return name

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue

    def _data(self) -> list[BrokerData]:
        return [
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
            for name, address in self.brokers.items()
        ]

    async def find_route(self, topic: str) -> TopicRouteData | None:
        self.asked.append("route")
        if not self.namesrv_answers:
            raise NoNameServerError("no name server responds")
        if not self.topic_exists or not self.brokers:
            return None
        queues = [
            QueueData(
                broker_name=name,
                read_queue_nums=self.queue_count,
                write_queue_nums=self.queue_count,
                perm=6,
            )
            for name in self.brokers
        ]
        return TopicRouteData(queue_datas=queues, broker_datas=self._data())

    async def cluster_info(self) -> ClusterInfo:
        if not self.namesrv_answers:
            raise NoNameServerError("no name server responds")
        return ClusterInfo(broker_addr_table={each.broker_name: each for each in self._data()})

    async def call(self, address: str, request: Command, *also: int) -> Command:
        assert request.code == RequestCode.GET_TOPIC_STATS_INFO
        self.asked.append(address)
        if (problem := self.stats.get(address)) is not None:
            raise problem
        (name,) = (name for name, at in self.brokers.items() if at == address)
        table = ",".join(
            json.dumps({"topic": "T", "brokerName": name, "queueId": number})
            + ':{"minOffset":1,"maxOffset":10}'
            for number in range(2)
        )
        return Command(code=0, body=b'{"offsetTable":{%s}}' % table.encode(), version=500)

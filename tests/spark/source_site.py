"""A real broker with small files, for tests that drive the source without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from skylark import ClientOptions, Message
from skylark.admin.blocking_admin import Admin
from skylark.sync import Producer
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import poll_until
from tests.spark.driven import DrivenStream

SMALL_LOG = 64 * 1024


class Site:
    """A broker whose log files are small, and a producer."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self._settings = settings
        self.open = ExitStack()
        self.namesrv = self.open.enter_context(SkylarkNamesrv(folder=folder / "namesrv"))
        self.options = ClientOptions(namesrv=self.namesrv.address)
        self.broker = self.open.enter_context(self.make_broker("broker-a"))
        self.admin = self.open.enter_context(Admin(self.options))
        self.producer = self.open.enter_context(Producer("test", self.options, batching=False))
        self._count = 0

    def make_broker(self, name: str) -> SkylarkBroker:
        settings = {
            "brokerName": name,
            "mappedFileSizeCommitLog": SMALL_LOG,
            "mappedFileSizeConsumeQueue": 60_000,
            "maxMessageSize": 16_384,
            "flushIntervalConsumeQueue": 50,
            "enablePropertyFilter": "true",
            **self._settings,
        }
        return SkylarkBroker(self.namesrv.address, settings, folder=self.folder / name)

    def topic(self, queue_count: int = 4) -> str:
        self._count += 1
        name = f"T{self._count}"
        self.admin.topics.create(name, queue_count=queue_count)
        brokers = len(self.admin.stats.clusters().brokers)
        poll_until(
            lambda: len(self.admin.topics.route(name).queue_datas) == brokers,
            timeout_s=30,
            what="the route of all brokers",
        )
        return name

    def send(
        self,
        topic: str,
        count: int,
        queue_id: int = 0,
        *,
        tags: Sequence[str] = ("A",),
        broker: str = "broker-a",
        size: int = 0,
    ) -> None:
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        futures = [
            self.producer.submit(
                Message(topic, f"{index}".encode().ljust(size, b"."), tags[index % len(tags)]),
                queue=queue,
            )
            for index in range(count)
        ]
        for future in futures:
            future.result(30)

    def wait_written(self, topic: str, queue_id: int, count: int) -> None:
        """Until the entries of a queue are in its file: the broker writes them now and then."""
        file = self.broker.store / "consumequeue" / topic / str(queue_id) / f"{0:020}"
        poll_until(
            lambda: file.exists() and any(file.read_bytes()[(count - 1) * 20 : count * 20]),
            timeout_s=30,
            what="the entries of the queue",
        )

    def given(self, topic: str, **more: object) -> dict[str, object]:
        return {"nameServer": self.namesrv.address, "topic": topic} | more

    def stream(self, topic: str, **more: object) -> DrivenStream:
        more = {"startingOffsets": "earliest", "idlePollMs": 20} | more
        return DrivenStream(**self.given(topic, **more))

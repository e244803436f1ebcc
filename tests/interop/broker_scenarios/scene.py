"""What a scenario works with: our servers (a site), one real client, and names of its own."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from skylark.admin.admin_client import Admin
from skylark.client.core.client_options import ClientOptions
from tests.interop.answered import answered_requests
from tests.interop.broker_scenarios.table import CPP, JAVA_5, SCENARIO_BY_KEY
from tests.interop.cpp import cpp_client
from tests.interop.driver import Client, Delivery, java_client
from tests.interop.java import ApacheBroker, ApacheNamesrv
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import ManagedProcess, draw_port
from tests.interop.toolchain import CURRENT, OLD_CLIENT

QUEUES: Final = 4
#: Long enough for any scenario on a busy machine, short enough to wait for.
TIMEOUT_S: Final = 30.0

TRANSACTION_CHECKS: Final = 4

#: Java's defaults, but for what would take minutes: a retry comes after a second, not ten.
SETTINGS: Final = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "metricsExporterType": "PROM",
    "messageDelayLevel": " ".join(["1s", "3s"] + ["1s"] * 16),
    "transactionTimeOut": 1_000,
    "transactionCheckMax": TRANSACTION_CHECKS,
    "transactionCheckInterval": 1_000,
    "transactionOpBatchInterval": 500,
}


def scenario(key: str) -> pytest.MarkDecorator:
    """Run a test with every client that the table names for this scenario."""
    return pytest.mark.parametrize("kind", SCENARIO_BY_KEY[key].clients)


class Site:
    """A name server and a broker, of ours or of Apache's."""

    def __init__(
        self, namesrv: SkylarkNamesrv | ApacheNamesrv, broker: SkylarkBroker | ApacheBroker
    ) -> None:
        self.namesrv = namesrv
        self.broker = broker

    def answered(self) -> Counter[str]:
        """Requests that the broker has answered with success up to now, by name."""
        return answered_requests(int(str(self.broker.settings["metricsPromExporterPort"])))

    def create_topic(self, topic: str, queue_count: int) -> None:
        async def create() -> None:
            async with Admin(ClientOptions(namesrv=self.namesrv.address)) as admin:
                await admin.topics.create(topic, queue_count=queue_count)

        asyncio.run(create())


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    """Both servers, started; in the end neither may have logged an error."""
    settings = {**SETTINGS, "metricsPromExporterPort": draw_port()}
    with (
        SkylarkNamesrv(folder=folder / "namesrv") as namesrv,
        SkylarkBroker(namesrv.address, settings, folder=folder / "broker") as broker,
    ):
        yield Site(namesrv, broker)
    assert not [*logged_errors(namesrv), *logged_errors(broker)]


def logged_errors(server: ManagedProcess) -> Iterator[str]:
    """Lines of a server's log, over all of its starts, that tell of an error."""
    for path in sorted(server.folder.glob("*.err")):
        for line in path.read_text().splitlines():
            if re.search(r" (ERROR|CRITICAL) |^Traceback", line):
                yield f"{path.name}: {line}"


@contextmanager
def running_client(kind: str, folder: Path, *, serialize: str = "JSON") -> Iterator[Client]:
    """A process with the client of one column of the table."""
    if kind == CPP:
        with cpp_client(folder=folder) as client:
            yield client
    else:
        version = CURRENT if kind == JAVA_5 else OLD_CLIENT
        with java_client(version, serialize=serialize, folder=folder) as client:
            yield client


class Scene:
    """One client on one site, with a topic, a group and a producer that nobody else uses.

    Consumers and producers are known by short names; they end with the scene.
    """

    def __init__(self, client: Client, site: Site, name: str) -> None:
        self.client = client
        self.site = site
        self.topic = name
        self.group = f"{name}_group"
        self._actors: list[str] = []

    def create_topic(self, queue_count: int = QUEUES) -> None:
        self.site.create_topic(self.topic, queue_count)

    def call(self, command: str, name: str, **options: str | int) -> Any:
        """A command to one producer or consumer."""
        return self.client.call(command, name=self._full(name), **options)

    def producer(self, name: str = "p", **options: str | int) -> None:
        self._begin("producer", name, {"group": f"{self.topic}_{name}", **options})

    def push(self, name: str, **options: str | int) -> None:
        self._begin("push", name, {"group": self.group, "topic": self.topic, **options})

    def lite(self, name: str, **options: str | int) -> None:
        self._begin("lite", name, {"group": self.group, "topic": self.topic, **options})

    def send(self, count: int, *, how: str = "sync", name: str = "p", **options: str | int) -> Any:
        """Send numbered messages; what the client made of the answers."""
        return self.call(
            "send", name, **{"topic": self.topic, "how": how, "count": count, **options}
        )

    def wait_got(self, *consumers: str, count: int, timeout_s: float = TIMEOUT_S) -> list[Delivery]:
        """Exactly ``count`` deliveries to these consumers together."""
        names = [self._full(consumer) for consumer in consumers]
        return self.client.wait_got(names, count, timeout_s=timeout_s)

    def got(self, *consumers: str) -> list[Delivery]:
        """The deliveries to these consumers up to now."""
        return self.client.got(*(self._full(consumer) for consumer in consumers))

    def stop(self, name: str) -> None:
        """End a producer or consumer, with its goodbye to the broker."""
        self._actors.remove(name)
        self.call("stop", name)

    def close(self) -> None:
        if self.client.process.running:
            for name in reversed(self._actors):
                self.call("stop-soon", name)

    def _begin(self, command: str, name: str, options: dict[str, str | int]) -> None:
        self.call(command, name, namesrv=self.site.namesrv.address, **options)
        self._actors.append(name)

    def _full(self, name: str) -> str:
        return f"{self.topic}_{name}"


def keys(prefix: str, count: int) -> set[str]:
    """The keys of messages numbered from 0."""
    return {f"{prefix}-{number}" for number in range(count)}


def queue_orders(deliveries: list[Delivery]) -> dict[int, list[int]]:
    """The queue offsets in the order in which they were delivered, by queue."""
    orders: dict[int, list[int]] = {}
    for each in deliveries:
        orders.setdefault(each.queue, []).append(each.offset)
    return orders

"""A cluster as the real mqadmin shows it.

mqadmin reports failures as stack traces and a good exit status, so every method here checks that
the text is the kind of answer it expects and raises :class:`AdminError` with the text otherwise.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass

from tests.interop.java import MqAdmin
from tests.interop.process import poll_until


class AdminError(Exception):
    """mqadmin printed something else than the answer; the text is what it printed."""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One line of ``clusterList``: what does not change from moment to moment."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One entry of the queue table that ``topicRoute`` shows."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class Route:
    """What ``topicRoute`` shows: addresses by broker name and id, and queues sorted by broker."""

    addresses: dict[str, dict[int, str]]
    clusters: dict[str, str]
    queues: list[QueueRow]


class Cluster:
    """Questions and orders to a cluster by way of one name server."""

    def __init__(self, mqadmin: MqAdmin, namesrv: str) -> None:
        self._mqadmin = mqadmin
        self.namesrv = namesrv

    def run(self, command: str, *options: str, expect: str = "") -> str:
        """What one command printed, which must contain ``expect`` and no stack trace."""
        printed = self._mqadmin.run(command, "-n", self.namesrv, *options)
        if expect not in printed or "\n\tat " in printed:
            raise AdminError(printed)
        return printed

    def refusal(self, command: str, *options: str) -> tuple[int, str]:
        """Response code and remark with which a command was refused."""
        printed = self._mqadmin.run(command, "-n", self.namesrv, *options)
        found = re.search(r"CODE: (\d+) +DESC: ([^\n]*)", printed)
        if found is None:
            raise AdminError(printed)
        return int(found.group(1)), found.group(2)

    def brokers(self) -> list[BrokerRow]:
        rows = []
        for line in self.run("clusterList", expect="#Cluster Name").splitlines():
            if line.strip() and not line.startswith("#"):
                cluster, name, broker_id, address, version = line.split()[:5]
                rows.append(BrokerRow(cluster, name, int(broker_id), address, version))
        return sorted(rows, key=lambda row: (row.broker_name, row.broker_id))

    def topics(self) -> set[str]:
        return set(self.run("topicList").split())

    def route(self, topic: str) -> Route:
        printed = self.run("topicRoute", "-t", topic, expect="queueDatas")
        # Broker ids are printed as bare integer keys.
        shown = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', printed))
        brokers = shown["brokerDatas"]
        return Route(
            addresses={
                each["brokerName"]: {int(k): v for k, v in each["brokerAddrs"].items()}
                for each in brokers
            },
            clusters={each["brokerName"]: each["cluster"] for each in brokers},
            queues=sorted(
                (
                    QueueRow(
                        each["brokerName"],
                        each["readQueueNums"],
                        each["writeQueueNums"],
                        each["perm"],
                    )
                    for each in shown["queueDatas"]
                ),
                key=lambda row: row.broker_name,
            ),
        )

    def create_topic(self, topic: str, *, cluster: str, queues: int) -> None:
        size = str(queues)
        self.run(
            *("updateTopic", "-c", cluster, "-t", topic, "-r", size, "-w", size),
            expect="create topic to ",
        )

    def wait_route(self, topic: str, *, timeout_s: float) -> Route:
        """The route of ``topic`` as soon as there is one."""
        return poll_until(
            lambda: self.route(topic) if topic in self.topics() else None,
            timeout_s=timeout_s,
            what=f"a route of {topic}",
        )

    def wait_brokers(self, *broker_names: str, timeout_s: float) -> list[BrokerRow]:
        """The rows of ``clusterList`` as soon as it shows exactly these brokers, all working."""
        rows: list[BrokerRow] = []

        def shown() -> bool:
            # mqadmin also asks each broker, and one that has just started or ended cannot answer.
            with suppress(AdminError):
                rows[:] = self.brokers()
                return [row.broker_name for row in rows] == sorted(broker_names)
            return False

        poll_until(shown, timeout_s=timeout_s, what=f"brokers {broker_names} and no others")
        return rows

"""What the name server counts: requests by code and outcome, and the sizes of its tables."""

from __future__ import annotations

from collections.abc import Callable

from skylark.core.metrics import Counter, Registry
from skylark.namesrv.routes import RouteTables
from skylark.net.connection import Connection
from skylark.wire.catalogue import name_of
from skylark.wire.command import Command


class RequestCounter:
    """An interceptor that counts answered requests by name and response code."""

    def __init__(self, registry: Registry) -> None:
        self._metric = registry.counter(
            "skylark_namesrv_requests_total",
            "Requests handled, by name and response code.",
            ["request", "code"],
        )
        self._children: dict[tuple[int, int], Counter] = {}

    def before(self, _connection: Connection, _request: Command) -> None:
        return None

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        if response is not None:
            key = (request.code, response.code)
            child = self._children.get(key)
            if child is None:
                child = self._metric.labels(name_of(request.code), str(int(response.code)))
                self._children[key] = child
            child.value += 1
        return response


def add_gauges(
    registry: Registry, tables: RouteTables, connection_count: Callable[[], int]
) -> None:
    """Gauges that read the tables when they are scraped."""
    registry.gauge(
        "skylark_namesrv_brokers",
        "Brokers registered and alive.",
        callback=lambda: tables.live_broker_count,
    )
    registry.gauge(
        "skylark_namesrv_topics", "Topics with a route.", callback=lambda: tables.topic_count
    )
    registry.gauge(
        "skylark_namesrv_removals_waiting",
        "Removals of brokers that are queued.",
        callback=lambda: tables.removal_count,
    )
    registry.gauge("skylark_namesrv_connections", "Open connections.", callback=connection_count)

"""How long requests take: the metric ``rocketmq_rpc_latency``, fed by an interceptor.

Measured is from the moment at which the handler's turn has come until the answer is known, which
may be later: messages that wait for the disk count with their wait, and so do held pulls, which are
told from others by the label ``is_long_polling``. A request that gets no answer is not measured.
Must be the last of the interceptors, next to the handler: one that another interceptor has answered
took no time.

Answers to Java's ``RemotingMetricsManager``, with its names in lower case.
"""

from __future__ import annotations

from typing import Final

from skylark.broker.stats.metrics import PROTOCOL_TYPE, BrokerMetrics
from skylark.core.clock import TimeSource
from skylark.core.metrics import Histogram
from skylark.net.connection import Connection
from skylark.wire.catalogue import name_of
from skylark.wire.codes import ResponseCode
from skylark.wire.command import Command

#: Requests whose end is awaited; more than can be in hand at a time.
OPEN_COUNT_MAX: Final = 100_000


class RpcTimes:
    """An interceptor that changes nothing."""

    def __init__(self, metrics: BrokerMetrics, clock: TimeSource) -> None:
        self._metric = metrics.rpc_latency
        self._monotonic = clock.monotonic
        self._began: dict[int, float] = {}  # by the identity of a request in work
        self._held: set[int] = set()  # of these, the held pulls
        self._children: dict[tuple[int, int, bool, bool], Histogram] = {}

    def before(self, _connection: Connection, request: Command) -> None:
        if len(self._began) >= OPEN_COUNT_MAX:  # some were given up before they had ended
            self._began.clear()
            self._held.clear()
        self._began[id(request)] = self._monotonic()

    def held(self, request: Command) -> None:
        """This request, a pull, waits until there is something to be had."""
        self._held.add(id(request))

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        now = self._monotonic()
        identity = id(request)
        began = self._began.pop(identity, now)
        was_held = identity in self._held
        if was_held:
            self._held.discard(identity)
        if response is not None:
            key = (request.code, response.code, was_held, request.is_oneway)
            child = self._children.get(key)
            if child is None:
                child = self._children[key] = self._child(*key)
            child.observe((now - began) * 1000)
        return response

    def _child(self, code: int, response_code: int, was_held: bool, is_oneway: bool) -> Histogram:
        return self._metric.labels(
            PROTOCOL_TYPE,
            name_of(code).lower(),
            _response_name(response_code),
            "true" if was_held else "false",
            "oneway" if is_oneway else "success",
        )


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)

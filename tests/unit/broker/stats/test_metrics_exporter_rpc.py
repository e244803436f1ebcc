"""Times of requests."""

from __future__ import annotations

from typing import cast

import pytest

from skylark.broker.stats import metrics_exporter
from skylark.broker.stats.metrics import BrokerMetrics
from skylark.broker.stats.metrics_exporter import RpcTimes
from skylark.core.metrics import Registry
from skylark.net.connection import Connection
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.codes import RequestCode
from skylark.wire.command import FLAG_ONEWAY, Command, response_to

NOBODY = cast(Connection, None)


class Timed:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.metrics = BrokerMetrics(Registry())
        self.times = RpcTimes(self.metrics, self.clock)

    def lines(self, ending: str) -> list[str]:
        text = self.metrics.registry.render()
        name = f"rocketmq_rpc_latency_{ending}{{"
        return [line.removeprefix(name) for line in text.splitlines() if line.startswith(name)]


async def test_the_time_of_the_handler_counts() -> None:
    timed = Timed()
    slow = Command(code=RequestCode.GET_CONSUME_STATS)
    quick = Command(code=RequestCode.SEND_MESSAGE_V2)
    timed.times.before(NOBODY, slow)
    await timed.clock.advance(0.25)
    timed.times.before(NOBODY, quick)
    for request, code in ((quick, 14), (slow, 0)):
        answer = response_to(request, code)
        assert timed.times.after(NOBODY, request, answer) is answer
    assert timed.lines("sum") == [
        'protocol_type="remoting",request_code="get_consume_stats",response_code="success",'
        'is_long_polling="false",result="success"} 250.0',
        'protocol_type="remoting",request_code="send_message_v2",'
        'response_code="service_not_available",is_long_polling="false",result="success"} 0.0',
    ]


def test_one_way_requests_and_unknown_codes_are_named() -> None:
    timed = Timed()
    request = Command(code=9_999, flag=FLAG_ONEWAY)
    timed.times.before(NOBODY, request)
    timed.times.after(NOBODY, request, response_to(request, 7_777))
    (line,) = timed.lines("count")
    assert 'request_code="unknown(9999)",response_code="7777"' in line
    assert 'result="oneway"} 1' in line


async def test_what_is_answered_later_counts_with_its_wait() -> None:
    """A message that waits for the disk, and a pull that is held, which is told apart."""
    timed = Timed()
    send, pull = Command(code=RequestCode.SEND_MESSAGE), Command(code=RequestCode.PULL_MESSAGE)
    for request in (send, pull):
        timed.times.before(NOBODY, request)
    timed.times.held(pull)
    await timed.clock.advance(15)
    for request, code in ((send, 0), (pull, 19)):
        timed.times.after(NOBODY, request, response_to(request, code))
    timed.times.before(NOBODY, pull)  # the next one finds something at once
    timed.times.after(NOBODY, pull, response_to(pull, 0))
    assert timed.lines("sum") == [
        'protocol_type="remoting",request_code="pull_message",response_code="pull_not_found",'
        'is_long_polling="true",result="success"} 15000.0',
        'protocol_type="remoting",request_code="pull_message",response_code="success",'
        'is_long_polling="false",result="success"} 0.0',
        'protocol_type="remoting",request_code="send_message",response_code="success",'
        'is_long_polling="false",result="success"} 15000.0',
    ]


def test_what_is_not_answered_is_not_measured() -> None:
    timed = Timed()
    request = Command(code=RequestCode.PULL_MESSAGE)
    timed.times.before(NOBODY, request)
    timed.times.held(request)
    assert timed.times.after(NOBODY, request, None) is None
    assert timed.lines("count") == []
    timed.times.before(NOBODY, request)
    timed.times.after(NOBODY, request, response_to(request, 0))
    (line,) = timed.lines("count")
    assert 'is_long_polling="false"' in line


def test_what_others_answered_took_no_time() -> None:
    timed = Timed()
    request = Command(code=RequestCode.SEND_MESSAGE)
    timed.times.after(NOBODY, request, response_to(request, 2))
    (line,) = timed.lines("sum")
    assert line.endswith("} 0.0")


def test_requests_that_never_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_exporter, "OPEN_COUNT_MAX", 3)
    timed = Timed()
    requests = [Command(code=RequestCode.SEND_MESSAGE) for _ in range(5)]
    for request in requests:
        timed.times.before(NOBODY, request)
    timed.times.after(NOBODY, requests[-1], response_to(requests[-1], 0))
    (line,) = timed.lines("count")
    assert line.endswith("} 1")

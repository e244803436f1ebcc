"""The starved benchmark: what counts as a refusal, and when a goal is missed."""

from __future__ import annotations

import pytest

from bench.compare_load.summary import APACHE, SKYLARK
from bench.harness import BenchError
from bench.starved import Result, parse_arguments, refusal_count, verdict

LOG = """\
12:00:00.000 WARN  [t] RocketmqClient - sendKernelImpl exception, resend at once, InvokeID: 1
org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN_QUEUE]broker
\tat org.apache.rocketmq.client.impl.MQClientAPIImpl.processSendResponse(MQClientAPIImpl.java:1)
12:00:01.000 WARN  [t] RocketmqClient - sendKernelImpl exception, resend at once, InvokeID: 2
org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2  DESC: [PCBUSY_CLEAN_QUEUE]broker
12:00:01.000 ERROR [t] o.a.r.e.b.Producer - [BENCHMARK_PRODUCER] Send Exception
org.apache.rocketmq.client.exception.MQClientException: Send [3] times, still failed
Caused by: org.apache.rocketmq.client.exception.MQBrokerException: CODE: 2  DESC: [TIMEOUT_CLEAN
org.apache.rocketmq.client.exception.MQBrokerException: CODE: 20  DESC: another
"""


def result(row: str, system: str, refused: int, messages: int = 1_000_000) -> Result:
    return Result(row, system, messages, refused, failed=0, seconds=1.0)


def test_each_response_with_code_2_is_counted_once() -> None:
    assert refusal_count(LOG) == 2
    assert refusal_count("") == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "is_met"),
    [(15, 30, True), (16, 30, False), (0, 0, True), (14, 29, True), (15, 29, False)],
)
def test_ours_may_refuse_half_as_many(ours: int, theirs: int, is_met: bool) -> None:
    results = [result("producer", SKYLARK, ours), result("producer", APACHE, theirs)]
    assert (not verdict(results)) is is_met


def test_refusals_count_per_message() -> None:
    theirs = result("producer", APACHE, 60, messages=4_000_000)
    assert verdict([result("producer", SKYLARK, 8), theirs])
    assert not verdict([result("producer", SKYLARK, 7), theirs])


def test_a_burst_is_refused_nothing() -> None:
    assert not verdict([result("burst", SKYLARK, 0), result("burst", APACHE, 9)])
    assert verdict([result("burst", SKYLARK, 1)]) == ["burst: 1 refused, none may be"]


@pytest.mark.parametrize(
    "wrong", [["--rows", "flood"], ["--systems", "kafka"], ["--messages", "0"], ["--busy", "-1"]]
)
def test_wrong_arguments_are_refused(wrong: list[str]) -> None:
    with pytest.raises(BenchError):
        parse_arguments(wrong)


def test_rows_and_systems_are_picked() -> None:
    options = parse_arguments(["--rows", "burst", "--systems", SKYLARK])
    assert (options.rows, options.systems) == (["burst"], [SKYLARK])
    assert parse_arguments(["--rows", ""]).rows == ["producer", "burst"]

"""What a send costs while consumers wait for other messages: beside 4,000 held pulls, and none.

``make bench PART=held`` starts two brokers (:mod:`bench.path_load.child`). At one of them, 4,000
pulls wait for tags that no message has. Both get the same sends: frames of the Java client, one
after the other, to four queues. The figure is the time until the response to one.

The goal is that waiting consumers cost a send next to nothing: a message finds those that it wakes
by its tag (:mod:`skylark.broker.pull.waiter_index`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from bench.harness import ROOT, Case, compile_package, main
from bench.path import MeasuredBroker
from bench.path_load.connection import Connection, max_offset, request_frame
from bench.path_load.rows import QUEUES, ROWS, Work

TOPIC: Final = "held"
PULLS: Final = 4_000
TIME_MAX: Final = 1.1
PULL_MESSAGE: Final = 11
HELD_MS: Final = 600_000
SYS_FLAG: Final = 2 | 4  # the pull may be held, and brings its filter
SEND: Final = next(row for row in ROWS if row.kind == "send")


def hold_pulls(broker: Connection, topic: str, count: int) -> None:
    """Let so many pulls wait at the ends of the queues, each for a tag of its own.

    A refusal of one raises BenchError: the broker answers the last request after all of them.
    """
    ends = [max_offset(broker, topic, queue_id) for queue_id in range(QUEUES)]
    for number in range(count):
        queue_id = number % QUEUES
        fields = {
            "consumerGroup": "waiting",
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(ends[queue_id]),
            "maxMsgNums": "32",
            "sysFlag": str(SYS_FLAG),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(HELD_MS),
            "subscription": f"waited-for-{number}",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        broker.exchange(request_frame(PULL_MESSAGE, fields, opaque=number), 0)
    max_offset(broker, topic, 0)


def make_case(stack: ExitStack, name: str, pulls: int, floor: str | None = None) -> Case:
    """A broker of its own with so many held pulls, and the sends to it."""
    broker = MeasuredBroker(ROOT / "src")
    stack.callback(broker.stop)
    broker.connect()
    work = Work(SEND, TOPIC)
    work.prepare(broker.connection)
    consumer = stack.enter_context(Connection(broker.address))
    hold_pulls(consumer, TOPIC, pulls)
    return Case(
        name,
        lambda: work.run(broker.connection),
        units=SEND.units,
        unit="message",
        floor=floor,
        time_at_most=None if floor is None else TIME_MAX,
    )


if __name__ == "__main__":
    compile_package()
    with ExitStack() as brokers:
        alone = make_case(brokers, "send, no pull is held", 0)
        beside = make_case(brokers, f"send, {PULLS:,} pulls are held", PULLS, alone.name)
        main("held", [alone, beside])

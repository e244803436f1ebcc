"""Holds idle pulls at a broker, and wakes one that waits elsewhere, with plain sockets.

The pulls bring their filter with them, so no client has to join a group. What is measured is the
broker's processor time, so this process may be as slow as it likes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.path_load.connection import Connection, max_offset, request_frame
from bench.path_load.frames import CURRENT, load

PULL_MESSAGE: Final = 11
SYS_FLAG: Final = 2 | 4  # the pull may be held, and brings its filter
HELD_MS: Final = 600_000
#: Fewer than a broker holds for one connection.
PER_CONNECTION: Final = 1_000
#: Between two messages, so that each is handled alone.
PAUSE_S: Final = 0.002


def pull_frame(topic: str, queue_id: int, offset: int) -> bytes:
    fields = {
        "consumerGroup": "idle",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(SYS_FLAG),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(HELD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return request_frame(PULL_MESSAGE, fields)


@contextmanager
def idle_pulls(broker: str, topic: str, queues: int, count: int) -> Iterator[None]:
    """Hold so many pulls at the ends of the queues of a topic that gets no messages."""
    with ExitStack() as stack:
        for first in range(0, count, PER_CONNECTION):
            connection = stack.enter_context(Connection(broker))
            numbers = range(first, min(count, first + PER_CONNECTION))
            ends = [max_offset(connection, topic, queue_id) for queue_id in range(queues)]
            for number in numbers:
                queue_id = number % queues
                connection.exchange(pull_frame(topic, queue_id, ends[queue_id]), 0)
            max_offset(connection, topic, 0)  # is answered after all of them
        yield


def wake_one_by_one(broker: str, topic: str, seconds: float) -> int:
    """Send messages to a pull that waits, each when the pull waits again; how many."""
    send = load(CURRENT, topic)["send 1024"]
    count = 0
    with Connection(broker) as connection:
        offset = max_offset(connection, topic, 0)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            connection.exchange(pull_frame(topic, 0, offset + count), 0)
            time.sleep(PAUSE_S / 2)
            connection.exchange(send.frame(count, e=0), 2)
            time.sleep(PAUSE_S / 2)
            count += 1
    return count

"""A consumer process of a storm, which is killed: ``python -m tests.support.storm_member NAMESRV``.

It prints ``joined`` when it has queues, and a line for each message that it accepts, before the
message counts as consumed: queue id, queue offset, how often it was delivered before, and its
number. So what a killed process has committed was printed.
"""

from __future__ import annotations

import sys
import threading
import time

from skylark import sync
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.support.client_work import GROUP, JOINED, MEMBER_CONCURRENCY, TOPIC, number_of


def main(namesrv: str) -> None:
    """Consume until killed."""
    consumer = sync.PushConsumer(
        GROUP,
        ClientOptions(
            namesrv=namesrv, request_timeout=0.5, route_interval=0.1, heartbeat_interval=0.5
        ),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        concurrency=MEMBER_CONCURRENCY,
    )

    @consumer.subscribe(TOPIC)
    def handle(message: MessageExt) -> None:
        numbers = (message.queue_id, message.queue_offset, message.reconsume_times)
        sys.stdout.write(f"{' '.join(map(str, numbers))} {number_of(message)}\n")
        sys.stdout.flush()

    with consumer:
        while not any(queue.topic == TOPIC for queue in consumer.assignment):
            time.sleep(0.01)
        sys.stdout.write(JOINED.decode())
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])

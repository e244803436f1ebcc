"""After the bug is fixed: send the dead letters of a group again.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/redrive_dead_letters.py
"""

import queue

from skylark import DeadLetter, Message, MessageExt
from skylark.sync import Admin, Producer, PushConsumer

GROUP, TOPIC = "example-parser", "ExampleNumbers"


def consume(base: int, count: int) -> list[str]:
    """What a service makes of so many messages; its versions differ in the base of numbers."""
    outcomes: queue.SimpleQueue[str] = queue.SimpleQueue()
    consumer = PushConsumer(GROUP)

    @consumer.subscribe(TOPIC)
    def parse(message: MessageExt) -> None:
        try:
            outcomes.put(str(int(message.body, base)))
        except ValueError as error:
            outcomes.put("failed")
            raise DeadLetter(str(error)) from error

    with consumer:
        return sorted(outcomes.get(timeout=30) for _ in range(count))


def main() -> None:
    with Producer("example-typist") as producer:
        for body in (b"12", b"ff", b"2a"):
            producer.send(Message(TOPIC, body))
    print(f"first version: {consume(10, 3)}")

    with Admin() as admin:
        preview = admin.dlq.redrive(GROUP, dry_run=True)
        print(f"would send {preview.counts.sent} again")
        report = admin.dlq.redrive(GROUP, rate=100)  # repeated, it sends no letter twice
        print(f"sent {report.counts.sent}, complete: {report.is_complete}")
    print(f"second version: {consume(16, 2)}")


if __name__ == "__main__":
    main()

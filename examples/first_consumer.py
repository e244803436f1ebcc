"""Consume messages: a function that gets them as they come.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/first_consumer.py
"""

import queue

from skylark import Message, MessageExt
from skylark.sync import Producer, PushConsumer

NAMES = ["Earth", "Mars", "Venus"]

consumer = PushConsumer("example-greeter", concurrency=4)
greeted: queue.SimpleQueue[str] = queue.SimpleQueue()


@consumer.subscribe("ExampleGuests")
def greet(message: MessageExt) -> None:
    """Returning accepts the message; raising has it delivered again later."""
    greeted.put(f"Hello {message.body.decode()}, sent at {message.born_time:%H:%M:%S}")


def main() -> None:
    with Producer("example-door") as producer:
        for name in NAMES:
            producer.send(Message("ExampleGuests", name.encode()))

    with consumer:  # a service calls consumer.run() instead: it returns after SIGTERM or Ctrl-C
        for _ in NAMES:
            print(greeted.get(timeout=30))
    print("all greeted")


if __name__ == "__main__":
    main()

"""Broadcasting: every member of the group gets every message, as caches want it.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/broadcasting.py
"""

import queue
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from skylark import ClientOptions, ConsumeFromWhere, Message, MessageExt, MessageModel
from skylark.sync import Producer, PushConsumer

received: queue.SimpleQueue[str] = queue.SimpleQueue()


def member(name: str, folder: Path) -> PushConsumer:
    consumer = PushConsumer(
        "example-caches",
        ClientOptions(instance_name=name),  # members of one process need different names
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        consume_timestamp=datetime.now(UTC),
        offset_folder=folder,  # each member keeps its place in a file of its own
    )

    @consumer.subscribe("ExampleInvalidations")
    def forget(message: MessageExt) -> None:
        received.put(f"{name} forgets {message.body.decode()}")

    return consumer


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        left, right = member("left", Path(folder)), member("right", Path(folder))
        with Producer("example-database") as producer:
            for key in ("user-1", "user-2"):
                producer.send(Message("ExampleInvalidations", key.encode()))
        with left, right:
            for line in sorted(received.get(timeout=30) for _ in range(4)):
                print(line)


if __name__ == "__main__":
    main()

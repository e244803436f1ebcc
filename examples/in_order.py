"""Keep the order of what belongs together, with a sharding key and an orderly consumer.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/in_order.py
"""

import queue

from skylark import Message, MessageExt
from skylark.sync import Producer, PushConsumer

ACCOUNTS = ["A-1", "B-2", "C-3"]
STEPS = ["open", "deposit", "withdraw", "close"]

consumer = PushConsumer("example-ledger")
entries: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()


@consumer.subscribe("ExampleAccounts", orderly=True)
def on_entry(message: MessageExt) -> None:
    """One message of a queue at a time; a failed one holds up its queue until it succeeds."""
    (account,) = message.keys
    entries.put((account, message.body.decode()))


def main() -> None:
    with Producer("example-bank") as producer:
        for step in STEPS:
            for account in ACCOUNTS:  # equal keys: one queue
                message = Message("ExampleAccounts", step.encode(), keys=[account])
                producer.send(message, shard=account)

    with consumer:
        seen = [entries.get(timeout=30) for _ in range(len(STEPS) * len(ACCOUNTS))]
    for account in ACCOUNTS:
        print(f"{account}: {' > '.join(step for name, step in seen if name == account)}")


if __name__ == "__main__":
    main()

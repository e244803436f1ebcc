"""Consume some of a topic: by tag, or by an SQL expression over properties.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/filters.py

Brokers that were not started by `skylark up` need enablePropertyFilter=true for SQL.
"""

import queue

from skylark import Message, MessageExt
from skylark.sync import Producer, PushConsumer

TOPIC = "ExampleSales"
SALES = [("DE", 20), ("FR", 250), ("US", 900), ("DE", 140)]

by_tag = PushConsumer("example-domestic")
by_sql = PushConsumer("example-big-spenders")
domestic: queue.SimpleQueue[str] = queue.SimpleQueue()
large: queue.SimpleQueue[str] = queue.SimpleQueue()


@by_tag.subscribe(TOPIC, tags="DE || FR")
def on_domestic(message: MessageExt) -> None:
    domestic.put(message.body.decode())


@by_sql.subscribe(TOPIC, sql="amount > 100 AND TAGS <> 'US'")
def on_large(message: MessageExt) -> None:
    large.put(message.body.decode())


def main() -> None:
    with Producer("example-till") as producer:
        for country, amount in SALES:
            body = f"{country} {amount}".encode()
            properties = {"amount": str(amount)}
            producer.send(Message(TOPIC, body, tag=country, properties=properties))
    with by_tag, by_sql:
        print(f"by tag: {sorted(domestic.get(timeout=30) for _ in range(3))}")
        print(f"by SQL: {sorted(large.get(timeout=30) for _ in range(2))}")


if __name__ == "__main__":
    main()

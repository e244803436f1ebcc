"""Produce and consume with asyncio.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/asyncio_orders.py
"""

import asyncio

from skylark import Message, MessageExt
from skylark.aio import Producer, PushConsumer

COUNT = 500


async def main() -> None:
    numbers: asyncio.Queue[int] = asyncio.Queue()
    consumer = PushConsumer("example-async-billing")

    @consumer.subscribe("ExampleAsyncOrders")
    async def on_order(message: MessageExt) -> None:  # runs on this loop, 20 at a time
        await numbers.put(int(message.body))

    async with Producer("example-async-shop") as producer:
        # Sends that run at the same time travel together: these are a few requests.
        sends = [producer.send(Message("ExampleAsyncOrders", b"%d" % n)) for n in range(COUNT)]
        results = await asyncio.gather(*sends)
    print(f"sent {len(results)} to {len({result.queue for result in results})} queues")

    async with consumer, asyncio.timeout(30):
        seen = {await numbers.get() for _ in range(COUNT)}
    print(f"consumed {len(seen)}, from {min(seen)} to {max(seen)}")


if __name__ == "__main__":
    asyncio.run(main())

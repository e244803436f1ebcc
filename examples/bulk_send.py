"""Send many small messages fast: the producer puts them together by itself.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/bulk_send.py
"""

import asyncio
import time

from skylark import Message
from skylark.aio import Producer

TOPIC = "ExampleEvents"
COUNT = 20_000


async def main() -> None:
    messages = [Message(TOPIC, b"event %d" % number) for number in range(COUNT)]
    # A message waits up to `linger` seconds for company. When `pending_max` messages are under
    # way, submit waits: the brokers set the pace.
    async with Producer("example-events", linger=0.002, pending_max=2_000) as producer:
        began = time.perf_counter()
        sent = [await producer.submit(message) for message in messages]
        results = await asyncio.gather(*sent, return_exceptions=True)
        rate = COUNT / (time.perf_counter() - began)

        # submit has tried each message a few times; what was refused is sent again.
        outcomes = zip(messages, results, strict=True)
        refused = [message for message, result in outcomes if isinstance(result, Exception)]
        for message in refused:
            await producer.send(message)
    print(f"{COUNT} messages, {rate:,.0f} per second, {len(refused)} sent a second time")


if __name__ == "__main__":
    asyncio.run(main())

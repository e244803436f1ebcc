"""Workers that share one queue: each takes a job, and acknowledges it when it is done.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/pop_workers.py
"""

import asyncio

from skylark import ConsumeFromWhere, Message
from skylark.aio import PopConsumer, Producer

TOPIC = "ExampleJobs"
COUNT = 60
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def work(consumer: PopConsumer, done: dict[int, int]) -> None:
    while len(done) < COUNT:
        for message in await consumer.receive(4, wait=1):
            number = int(message.body)
            if number % 20 == 7 and message.attempt == 1:
                await message.nack(delay=1)  # failed: any worker gets it again, in a second
            else:
                done[number] = message.attempt
                await message.ack()


async def main() -> None:
    async with Producer("example-planner") as producer:
        await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % n)) for n in range(COUNT)))
    done: dict[int, int] = {}
    group = PopConsumer("example-workers", invisible=30, consume_from_where=FIRST)
    async with group.subscribe(TOPIC) as consumer:
        await asyncio.gather(*(work(consumer, done) for _ in range(8)))
    again = sorted(number for number, attempt in done.items() if attempt > 1)
    print(f"{len(done)} jobs are done, at the second attempt {again}")


if __name__ == "__main__":
    asyncio.run(main())

"""Ask over a topic and wait for the answer: a server and its client.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/request_reply.py
"""

import asyncio

from skylark import Message, MessageExt, RequestReplyTimeoutError
from skylark.aio import Admin, Producer, PushConsumer

PRICES = {"tea": 3, "coffee": 4}


async def serve(ready: asyncio.Event, closing: asyncio.Event) -> None:
    server = PushConsumer("example-price-server")
    async with Producer("example-price-server") as answers:

        @server.subscribe("ExamplePriceQuestions")
        async def answer(question: MessageExt) -> None:
            if (price := PRICES.get(question.body.decode())) is not None:
                await answers.reply(question, b"%d" % price)

        async with server:
            ready.set()
            await closing.wait()


async def main() -> None:
    async with Admin() as admin:
        await admin.topics.create("ExamplePriceQuestions")
    ready, closing = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks, Producer("example-guest") as guest:
        tasks.create_task(serve(ready, closing))
        await ready.wait()
        for drink in ("tea", "coffee", "nectar"):
            question = Message("ExamplePriceQuestions", drink.encode())
            try:
                reply = await guest.request(question, timeout=1 if drink == "nectar" else 30)
                print(f"{drink} costs {reply.body.decode()}")
            except RequestReplyTimeoutError:
                print(f"{drink}: nobody knows")
        closing.set()


if __name__ == "__main__":
    asyncio.run(main())

"""Clients inside a web application: started and stopped with it.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/web_lifespan.py

`lifespan` is what FastAPI(lifespan=lifespan) and Starlette(lifespan=lifespan) take; here main()
plays the web server, so that no framework is needed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skylark import Message, MessageExt
from skylark.aio import Admin, Producer, PushConsumer

producer = Producer("example-web")
consumer = PushConsumer("example-web-worker")
work: asyncio.Queue[str] = asyncio.Queue()


@consumer.subscribe("ExampleSignups")
async def on_signup(message: MessageExt) -> None:
    await work.put(message.body.decode())


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[None]:
    async with Admin() as admin:
        await admin.topics.create("ExampleSignups")  # one that exists stays as it is
    async with producer, consumer:  # neither touches signals: those belong to the server
        yield


async def post_signup(name: str) -> str:
    """A request handler."""
    result = await producer.send(Message("ExampleSignups", name.encode()))
    return f"202 accepted {name}: {result.status.name}"


async def main() -> None:
    async with lifespan(app=None), asyncio.timeout(60):
        for answer in await asyncio.gather(*map(post_signup, ("red", "blue"))):
            print(answer)
        print(f"worked on {sorted([await work.get(), await work.get()])}")


if __name__ == "__main__":
    asyncio.run(main())

"""taskiq: tasks of an asyncio application are messages, its workers a consumer group.

In one terminal:  skylark up
In another:       NAMESRV_ADDR=127.0.0.1:9876 python examples/taskiq_tasks.py

Needs pip install "skylark-mq[taskiq]". A service starts its workers with
`taskiq worker taskiq_tasks:broker` in the folder of this file.
"""

import asyncio
import logging

from taskiq.api import run_receiver_task

from skylark.integrations.taskiq_broker import SkylarkBroker

broker = SkylarkBroker("ExampleTaskiq", "example-resizers")
done: asyncio.Queue[str] = asyncio.Queue()
logging.getLogger("taskiq.receiver").setLevel(logging.ERROR)  # it warns when we end it


@broker.task
async def resize(picture: str, width: int) -> None:
    done.put_nowait(f"{picture} to {width}")


async def main() -> None:
    await broker.startup()
    await resize.kicker().with_labels(delay=2).kiq("dog.png", 80)  # the broker keeps it
    await resize.kiq("cat.png", 40)
    worker = asyncio.create_task(run_receiver_task(broker))
    try:
        for _ in range(2):
            print("resized", await asyncio.wait_for(done.get(), 60))
    finally:
        worker.cancel()
        await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())

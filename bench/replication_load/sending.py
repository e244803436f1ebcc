"""So many senders at once, each awaiting one send after the other, in a process of its own.

``python -m bench.replication_load.sending NAMESRV TOPIC COUNT SIZE`` prints what came of it as
JSON. Whatever was not answered with SEND_OK is an error: a master that waits for nobody is quick.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bench.client_load.job import SEND_TIMEOUT_S, WARM_UP, WINDOW, Watch, bodies
from skylark.client.core.client_message import Message, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.net.event_loop import new_event_loop


async def send_all(producer: Producer, topic: str, raw: list[bytes]) -> None:
    left = iter(raw)

    async def work() -> None:
        for body in left:
            result = await producer.send(Message(topic, body))
            if result.status is not SendStatus.SEND_OK:
                sys.exit(f"a send was answered with {result.status.name}")

    await asyncio.gather(*(work() for _ in range(WINDOW)))


async def run(namesrv: str, topic: str, count: int, size: int) -> dict[str, Any]:
    raw = [body.encode() for body in bodies(WARM_UP + count, size)]
    watch = Watch()
    options = ClientOptions(namesrv=namesrv)
    async with Producer("bench", options, batching=False, send_timeout=SEND_TIMEOUT_S) as producer:
        await send_all(producer, topic, raw[:WARM_UP])
        watch.start()
        await send_all(producer, topic, raw[WARM_UP:])
        watch.stop()
    return watch.report(count)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        namesrv, topic, count, size = sys.argv[1:]
        sys.stdout.write(json.dumps(runner.run(run(namesrv, topic, int(count), int(size)))) + "\n")

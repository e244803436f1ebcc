"""One producer of the coverage benchmark, with our client, until its process is ended.

Options as name=value: namesrv, topic, group, threads (sends under way), what ("tag and key",
"compressed"). Records, twice a second: the messages so far and the sends that failed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from skylark import ClientOptions, Message
from skylark.aio import Producer
from skylark.core.errors import SkylarkError
from skylark.net.event_loop import new_event_loop

TAGS = ("TagA", "TagB", "TagC", "TagD")


async def main(options: dict[str, str]) -> None:
    body = b"x" * (4_096 if options["what"] == "compressed" else 100)
    count = failed = 0

    async def send(producer: Producer, first: int, step: int) -> None:
        nonlocal count, failed
        number = first
        while True:
            tag, key = TAGS[number % len(TAGS)], f"order-{number}"
            try:
                await producer.send(Message(options["topic"], body, tag=tag, keys=[key]))
                count += 1
            except SkylarkError:
                failed += 1
            number += step

    async with Producer(options["group"], ClientOptions(namesrv=options["namesrv"])) as producer:
        threads = int(options["threads"])
        async with asyncio.TaskGroup() as group:
            for first in range(threads):
                group.create_task(send(producer, first, threads))
            while True:
                record = {"event": "count", "at_ms": int(time.time() * 1000)}
                print(json.dumps(record | {"count": count, "failed": failed}), flush=True)
                await asyncio.sleep(0.5)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main(dict(word.split("=", 1) for word in sys.argv[1:])))

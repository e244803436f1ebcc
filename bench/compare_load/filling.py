"""A process that makes a log long: large messages, a few at a time, so many bytes of them."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from skylark import ClientOptions, Message
from skylark.aio import Producer
from skylark.core.errors import SkylarkError
from skylark.net.event_loop import new_event_loop

BODY_SIZE = 1 << 20
AT_ONCE = 8
SEND_TIMEOUT_S = 60.0  # disks stall
BUSY_PAUSE_S = 0.5  # brokers refuse what has waited too long for one that does
BUSY_TRIES_MAX = 120  # in a row


async def run(job: dict[str, Any]) -> dict[str, int]:
    bodies = iter(range(job["bytes"] // BODY_SIZE))
    body = bytes(BODY_SIZE)
    sent = 0

    async def work(producer: Producer) -> None:
        nonlocal sent
        for _ in bodies:
            for tries_left in reversed(range(BUSY_TRIES_MAX)):
                try:
                    await producer.send(Message(job["topic"], body))
                    break
                except SkylarkError:
                    if not tries_left:
                        raise
                    await asyncio.sleep(BUSY_PAUSE_S)
            sent += 1

    # As it is: a body of zeros would be compressed to nothing.
    options = ClientOptions(namesrv=job["namesrv"])
    async with Producer(
        "filling", options, compress_over=2 * BODY_SIZE, send_timeout=SEND_TIMEOUT_S
    ) as producer:
        await asyncio.gather(*(work(producer) for _ in range(AT_ONCE)))
    return {"stored": sent}


def main() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(run(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()

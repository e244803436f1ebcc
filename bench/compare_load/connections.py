"""Many connections to one broker, each with one message under way: one sample, in its own process.

Run as ``python -m bench.compare_load.connections JOB``, where ``JOB`` is a JSON object with
``address``, ``topic``, ``queues``, ``connections``, ``size``, ``warm_up_s`` and ``seconds``. The
last line of its output says how many messages were acknowledged, and how many of them while time
ran.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import Any

from bench.load.clients import Client, Tally
from skylark.net.event_loop import new_event_loop
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command

GROUP = "compare-connections"


class Sender(Client):
    """Sends the next message when the last was acknowledged."""

    def __init__(self, tally: Tally, number: int, job: dict[str, Any]) -> None:
        super().__init__(tally, f"{GROUP}-{number}")
        self._body = b"x" * job["size"]
        self._sent = 0
        self._ext = {
            "a": GROUP, "b": job["topic"], "c": "TBW102", "d": "8",
            "e": str(number % job["queues"]), "f": "0", "h": "0",
        }  # fmt: skip
        self._number = number

    def send(self) -> None:
        self._sent += 1
        key = f"{self._number:08X}{self._sent:024X}"
        properties = f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"
        more = {"g": str(time.time_ns() // 1_000_000), "i": properties}
        self.tally.sent += 1
        code = RequestCode.SEND_MESSAGE_V2
        self.request(code, self._ext | more, self._body, self._answered)

    def _answered(self, answer: Command) -> None:
        if self.expect("send", answer, ResponseCode.SUCCESS):
            self.tally.stored += 1
        if not self.closing:
            self.send()


async def run(job: dict[str, Any]) -> dict[str, Any]:
    loop, tally = asyncio.get_running_loop(), Tally()
    host, _, port = job["address"].rpartition(":")
    senders = [Sender(tally, number, job) for number in range(job["connections"])]

    async def connect(sender: Sender) -> None:
        await loop.create_connection(lambda: sender, host, int(port))

    await asyncio.gather(*map(connect, senders))
    for sender in senders:
        sender.send()
    await asyncio.sleep(job["warm_up_s"])
    before, began = tally.stored, time.perf_counter()
    await asyncio.sleep(job["seconds"])
    count, wall_s = tally.stored - before, time.perf_counter() - began
    for sender in senders:
        sender.close()
    found = {"count": count, "wall_s": wall_s, "stored": tally.stored}
    return found | {"errors": tally.errors.most_common(5)}


def main() -> None:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(run(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()

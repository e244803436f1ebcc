"""How long the broker's loop is busy when many popped messages expire at once.

``make bench PART=revive`` pops 10,000 messages, acknowledges none, and watches every turn of the
broker's event loop while they come back: once with ``enablePopBufferMerge`` and once without. It
takes a minute, and ends with an error if a turn took more than 20 ms of processor time: so long all
other clients would wait.

Broker and consumer share this process, but the consumer is idle when the messages expire. A turn is
the time between two runs of a callback that schedules itself. Processor time of the thread, so that
other programs of the machine do not count; the time on the clock is printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TextIO

from bench.harness import BenchError, compile_package, run_program
from skylark import Message
from skylark.aio import PopConsumer, Producer
from skylark.core.names import pop_retry_topic
from skylark.net.event_loop import new_event_loop
from skylark.testing.local_broker import LocalBroker, broker

MESSAGES: Final = 10_000
BODY: Final = bytes(100)
QUEUES: Final = 4
BATCH: Final = 32
#: Longer than it takes to pop them all, so that they expire within a second or two of each other.
INVISIBLE_S: Final = 20.0
TURN_MAX_MS: Final = 20.0
BACK_TIMEOUT_S: Final = 120.0
LOOK_S: Final = 0.25


@dataclass
class Turns:
    """Turns of the loop of this thread."""

    count: int = 0
    longest_ms: float = 0.0
    longest_wall_ms: float = 0.0
    _running: bool = False
    _last: tuple[float, float] = field(default=(0.0, 0.0))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch every turn of the block; the loop never sleeps in it."""
        self._running, self._last = True, (time.thread_time(), time.perf_counter())
        asyncio.get_running_loop().call_soon(self._turn)
        try:
            yield
        finally:
            self._running = False

    def _turn(self) -> None:
        if not self._running:
            return
        now = time.thread_time(), time.perf_counter()
        self.count += 1
        self.longest_ms = max(self.longest_ms, (now[0] - self._last[0]) * 1e3)
        self.longest_wall_ms = max(self.longest_wall_ms, (now[1] - self._last[1]) * 1e3)
        self._last = now
        asyncio.get_running_loop().call_soon(self._turn)


async def measure(*, merging: bool, messages: int) -> Turns:
    """Pop all messages of a topic, and watch the loop until all of them are in the retry topic."""
    settings = {"enablePopBufferMerge": merging, "mappedFileSizeCommitLog": 256 << 20}
    async with broker(settings, transport="loopback") as local:
        topic = await local.topic(queue_count=QUEUES)
        async with Producer("producers", local.options) as producer:
            await asyncio.gather(
                *[await producer.submit(Message(topic, BODY)) for _ in range(messages)]
            )
        consumer = PopConsumer("poppers", local.options, invisible=INVISIBLE_S, batch=BATCH)
        async with consumer.subscribe(topic):
            popped = 0
            while popped < messages:
                popped += len(await consumer.receive(BATCH, wait=5.0))
            turns = Turns()
            gc.collect()
            gc.freeze()
            with turns.watched():
                await all_back(local, topic, messages)
    return turns


async def all_back(local: LocalBroker, topic: str, messages: int) -> None:
    retry, deadline = pop_retry_topic(topic, "poppers"), time.monotonic() + BACK_TIMEOUT_S
    queues = local.broker.features.store.queues
    while time.monotonic() < deadline:
        queue = queues.get(retry, 0)
        if queue is not None and queue.max_offset >= messages:
            return
        await asyncio.sleep(LOOK_S)
    raise BenchError(f"not all messages came back in {BACK_TIMEOUT_S:g} s")


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    parser = argparse.ArgumentParser(prog="bench.revive")
    parser.add_argument("--rows", default="", help="not used: there are two rows")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    options = parser.parse_args(arguments)
    compile_package()
    missed = 0
    for merging in (False, True):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            turns = runner.run(measure(merging=merging, messages=options.messages))
        name = "merging" if merging else "not merging"
        verdict = "" if turns.longest_ms <= TURN_MAX_MS else f"  FAILED: above {TURN_MAX_MS:g} ms"
        missed += bool(verdict)
        print(
            f"{name:<12} {options.messages:,} expired, {turns.count:,} turns, longest "
            f"{turns.longest_ms:.1f} ms of processor time ({turns.longest_wall_ms:.1f} ms in all)"
            f"{verdict}",
            file=stdout,
            flush=True,
        )
    return not missed


if __name__ == "__main__":
    run_program("revive", run)

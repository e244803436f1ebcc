"""Our client at work: one job, in a process of its own.

The event loop is the quicker one where it is installed, as in the servers; who runs asyncio's own
pays about a quarter more.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.client_load.job import RATE, SEND_TIMEOUT_S, WARM_UP, WINDOW, Job, Watch, bodies
from skylark.client.arrow.arrow_reader import read_arrow
from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import Message, MessageExt, SendResult
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.core.errors import SystemBusyError
from skylark.net.event_loop import new_event_loop
from skylark.wire.bodies.heartbeat import ConsumeFromWhere

BATCH = 32
GATHERED = 1_000
TWO_COLUMNS = ["queueOffset", "body"]
MEMORY_STEP = 20_000
POP_WAIT_S = 1.0


def options(job: Job) -> ClientOptions:
    return ClientOptions(namesrv=job.namesrv)


def new_producer(job: Job, *, batching: bool = True) -> Producer:
    return Producer("bench-ours", options(job), batching=batching, send_timeout=SEND_TIMEOUT_S)


# ---- sending ------------------------------------------------------------------------------------


async def one_by_one(producer: Producer, topic: str, raw: list[bytes]) -> None:
    for body in raw:
        await producer.send(Message(topic, body))


async def in_flight(producer: Producer, topic: str, raw: list[bytes]) -> None:
    """So many tasks, each awaiting one send after the other."""
    left = iter(raw)

    async def work() -> None:
        for body in left:
            await producer.send(Message(topic, body))

    await asyncio.gather(*(work() for _ in range(WINDOW)))


async def submitted(producer: Producer, topic: str, raw: list[bytes]) -> None:
    """All begun as the producer takes them, their results awaited at the end.

    What a broker refused because its disk stalled is sent again: no rule of ``submit`` does that.
    """
    futures = [await producer.submit(Message(topic, body)) for body in raw]
    for body, future in zip(raw, futures, strict=True):
        try:
            await future
        except SystemBusyError:
            await producer.send(Message(topic, body))


async def gathered(producer: Producer, topic: str, raw: list[bytes]) -> None:
    for first in range(0, len(raw), GATHERED):
        sends = [producer.send(Message(topic, body)) for body in raw[first : first + GATHERED]]
        await asyncio.gather(*sends)


SENDING: dict[str, Callable[[Producer, str, list[bytes]], Any]] = {
    "one by one": one_by_one,
    "in flight": in_flight,
    "submitted": submitted,
    "gathered": gathered,
}


async def send(job: Job) -> dict[str, Any]:
    watch = Watch()
    raw = [body.encode() for body in bodies(WARM_UP + job.count, job.body_size)]
    producer = new_producer(job, batching=job.how != "in flight")
    async with producer:
        await one_by_one(producer, job.topic, raw[:WARM_UP])
        rest = raw[WARM_UP:]
        watch.start()
        await SENDING[job.how](producer, job.topic, rest)
        watch.stop()
    return watch.report(job.count, stored=WARM_UP + job.count)


async def stored(job: Job) -> dict[str, Any]:
    """How many different messages a topic holds, by reading them; ``how`` names their column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[pa.Array] = []
    async for batch in read_arrow(job.topic, options(job), columns=[job.how]):
        column = batch.column(0)
        found.append(pc.binary_slice(column, 0, 8) if job.how == "body" else column)
    different = pc.count_distinct(pa.chunked_array(found)).as_py() if found else 0
    return {"count": sum(map(len, found)), "different": different}


# ---- receiving ----------------------------------------------------------------------------------


def push_consumer(job: Job, **settings: Any) -> PushConsumer:
    return PushConsumer(
        job.group,
        options(job),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        **settings,
    )


class Counter:
    """Handlers that do nothing but count; time runs from the first message to the last."""

    def __init__(self, count: int) -> None:
        self.watch = Watch()
        self._loop = asyncio.get_running_loop()
        self.done = self._loop.create_future()
        self._count = count
        self._before = 0
        self._seen = 0
        self._lock = threading.Lock()

    def _add(self, count: int) -> None:
        if not self._seen:
            self.watch.start()
            self._before = count
        self._seen += count
        if self._seen >= self._count and not self.watch.wall_s:
            self.watch.stop()
            self._loop.call_soon_threadsafe(self.done.set_result, self._seen - self._before)

    async def one(self, message: MessageExt) -> None:
        del message
        self._add(1)

    async def many(self, messages: Sequence[MessageExt]) -> None:
        self._add(len(messages))

    def in_thread(self, message: MessageExt) -> None:
        del message
        with self._lock:
            self._add(1)


async def consume(job: Job) -> dict[str, Any]:
    counter = Counter(job.count)
    consumer = push_consumer(job)
    if job.how == "per batch":
        consumer.subscribe(job.topic, counter.many, batch=BATCH)
    elif job.how == "threads":
        consumer.subscribe(job.topic, counter.in_thread)
    else:
        consumer.subscribe(job.topic, counter.one)
    async with consumer:
        count = await counter.done
    return counter.watch.report(count)


async def pop(job: Job) -> dict[str, Any]:
    """So many receives at a time, each of a batch that is acknowledged before the next one.

    Those that the broker holds at the end get nothing: the last messages end all of them.
    """
    counter = Counter(job.count)
    consumer = PopConsumer(
        job.group,
        options(job),
        batch=BATCH,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ).subscribe(job.topic)

    async def work() -> None:
        while not counter.done.done():
            messages = await consumer.receive(wait=POP_WAIT_S)
            if messages:
                await consumer.ack(messages)
                await counter.many(messages)

    async with consumer:
        receives = [asyncio.ensure_future(work()) for _ in range(int(job.how))]
        count = await counter.done
        await asyncio.gather(*receives)
    return counter.watch.report(count)


async def arrow(job: Job) -> dict[str, Any]:
    """Time runs from the call to the last batch: there is nothing to wait for before."""
    import pyarrow.compute  # noqa: F401 - loading it is no part of reading

    columns = TWO_COLUMNS if job.how == "two columns" else None
    watch = Watch()
    async for _ in read_arrow(job.topic, options(job), columns=columns):
        break  # connections are made, and modules loaded
    count = 0
    watch.start()
    async for batch in read_arrow(job.topic, options(job), columns=columns):
        count += batch.num_rows
    watch.stop()
    return watch.report(count)


# ---- both ---------------------------------------------------------------------------------------


def ticks(count: int, rate: int) -> Iterator[int]:
    """When each of so many messages is due, in nanoseconds; waits until then."""
    began = time.perf_counter_ns() + 10_000_000
    for number in range(count):
        due = began + number * 1_000_000_000 // rate
        if (left := due - time.perf_counter_ns()) > 0:
            time.sleep(left / 1e9)
        yield due


async def latency(job: Job) -> dict[str, Any]:
    """From when a message is due to when its handler runs.

    A thread keeps the time, because timers of loops count in whole milliseconds.
    """
    loop = asyncio.get_running_loop()
    found: list[float] = []
    warm, done = loop.create_future(), loop.create_future()
    tasks: set[asyncio.Task[SendResult]] = set()
    filler = b" " + b"x" * (job.body_size - 21)

    async def on_message(message: MessageExt) -> None:
        now = time.perf_counter_ns()
        due = int(message.body[:20])
        if not due:
            if not warm.done():
                warm.set_result(None)
            return
        found.append((now - due) / 1e6)
        if len(found) == job.count:
            done.set_result(None)

    consumer = push_consumer(job)
    consumer.subscribe(job.topic, on_message)
    async with new_producer(job) as producer:

        def begin(due: int) -> None:
            task = loop.create_task(producer.send(Message(job.topic, b"%020d" % due + filler)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def keep_time() -> None:
            for due in ticks(job.count, RATE):
                loop.call_soon_threadsafe(begin, due)

        await producer.send(Message(job.topic, b"0" * 20))  # makes the topic
        async with consumer:
            await warm
            watch = Watch()
            watch.start()
            await asyncio.gather(asyncio.to_thread(keep_time), done)
            watch.stop()
    return watch.report(job.count, latencies_ms=found)


def own_mib() -> float:
    """Memory of this process that no file stands behind."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


async def memory(job: Job) -> dict[str, Any]:
    """Memory while messages are sent and received, after each so many of them."""
    sizes: list[tuple[int, float]] = []
    seen = 0
    watch = Watch()
    behind = asyncio.Event()

    async def on_message(message: MessageExt) -> None:
        nonlocal seen
        del message
        seen += 1
        behind.set()

    consumer = push_consumer(job)
    consumer.subscribe(job.topic, on_message)
    raw = b"x" * job.body_size
    async with new_producer(job) as producer:
        await producer.send(Message(job.topic, raw))
        async with consumer:
            watch.start()
            for sent in range(MEMORY_STEP, job.count + 1, MEMORY_STEP):
                await submitted(producer, job.topic, [raw] * MEMORY_STEP)
                while seen < sent:
                    behind.clear()
                    await behind.wait()
                sizes.append((sent, own_mib()))
            watch.stop()
    return watch.report(job.count, sizes=sizes)


JOBS = {
    "send": send,
    "stored": stored,
    "consume": consume,
    "pop": pop,
    "arrow": arrow,
    "latency": latency,
    "memory": memory,
}


def main() -> None:
    job = Job.from_json(sys.argv[1])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        result = runner.run(JOBS[job.kind](job))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

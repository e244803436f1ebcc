"""The C++ client of the wheel ``rocketmq`` at work: one job, in a process of its own.

Runs with the wheel and nothing of ours. It is used as its documentation shows; of its defects two
concern us: a body ends at the first NUL byte, and ``send_async`` keeps something of every message
and searches through it at each answer, so that it becomes slower the more it has sent: samples are
short, in its favour. Its consumer rests for a second whenever enough has been pulled, so samples
are long there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PushConsumer,
    RecvMessage,
    SendStatus,
)

from bench.client_load.job import RATE, SEND_TIMEOUT_S, WARM_UP, WINDOW, Job, Watch, bodies

WAIT_S = 120.0


def message_of(topic: str, body: str) -> Any:
    message = Message(topic)
    message.set_body(body)
    return message


def started_producer(job: Job) -> Any:
    producer = Producer("bench-wheel", timeout=SEND_TIMEOUT_S * 1000)
    producer.set_namesrv_addr(job.namesrv)
    producer.start()
    return producer


def one_by_one(producer: Any, topic: str, texts: list[str]) -> None:
    for text in texts:
        if producer.send_sync(message_of(topic, text)).status != SendStatus.OK:
            raise RuntimeError("not stored")


class Pipeline:
    """Sends without waiting, so many at a time; its results are looked at.

    Now and then the library waits in vain for a lock of its own ("timed_mutex timeout") and says
    that a message was not sent. Those are sent again at the end, one by one.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._window = threading.Semaphore(WINDOW)
        self._again: list[tuple[str, str]] = []

    def send(self, topic: str, text: str) -> None:
        def sent(result: Any) -> None:
            if result.status != SendStatus.OK:
                failed(result)
            else:
                self._window.release()

        def failed(_: object) -> None:
            self._again.append((topic, text))
            self._window.release()

        self._window.acquire()
        self._producer.send_async(message_of(topic, text), sent, failed)

    def wait(self) -> None:
        for _ in range(WINDOW):
            self._window.acquire()
        for topic, text in self._again:
            one_by_one(self._producer, topic, [text])


def pipelined(producer: Any, topic: str, texts: list[str]) -> None:
    pipeline = Pipeline(producer)
    for text in texts:
        pipeline.send(topic, text)
    pipeline.wait()


def send(job: Job) -> dict[str, Any]:
    texts = bodies(WARM_UP + job.count, job.body_size)
    producer = started_producer(job)
    one_by_one(producer, job.topic, texts[:WARM_UP])
    watch = Watch()
    watch.start()
    (one_by_one if job.how == "one by one" else pipelined)(producer, job.topic, texts[WARM_UP:])
    watch.stop()
    return watch.report(job.count, stored=WARM_UP + job.count)


def started_consumer(job: Job, on_message: Any) -> Any:
    consumer = PushConsumer(job.group)
    consumer.set_namesrv_addr(job.namesrv)
    consumer.subscribe(job.topic, on_message)
    consumer.start()
    return consumer


def consume(job: Job) -> dict[str, Any]:
    """Time runs from the first message to the last."""
    watch = Watch()
    done = threading.Event()
    lock = threading.Lock()
    seen = 0

    def on_message(message: RecvMessage) -> None:
        nonlocal seen
        del message
        with lock:
            if not seen:
                watch.start()
            seen += 1
            if seen == job.count:
                watch.stop()
                done.set()

    consumer = started_consumer(job, on_message)
    if not done.wait(WAIT_S):
        raise TimeoutError(f"{seen} of {job.count} messages came")
    del consumer
    return watch.report(job.count - 1)


def latency(job: Job) -> dict[str, Any]:
    """From when a message is due to when its handler runs."""
    found: list[float] = []
    warm, done = threading.Event(), threading.Event()
    filler = " " + "x" * (job.body_size - 21)

    def on_message(message: RecvMessage) -> None:
        now = time.perf_counter_ns()
        due = int(message.body[:20])
        if not due:
            warm.set()
            return
        found.append((now - due) / 1e6)
        if len(found) >= job.count:
            done.set()

    producer = started_producer(job)
    one_by_one(producer, job.topic, [f"{0:020d}{filler}"])  # makes the topic
    consumer = started_consumer(job, on_message)
    if not warm.wait(WAIT_S):
        raise TimeoutError("nothing comes")
    pipeline = Pipeline(producer)
    watch = Watch()
    watch.start()
    began = time.perf_counter_ns() + 10_000_000
    for number in range(job.count):
        due = began + number * 1_000_000_000 // RATE
        if (left := due - time.perf_counter_ns()) > 0:
            time.sleep(left / 1e9)
        pipeline.send(job.topic, f"{due:020d}{filler}")
    pipeline.wait()
    if not done.wait(WAIT_S):
        raise TimeoutError(f"{len(found)} of {job.count} messages came")
    watch.stop()
    del consumer
    return watch.report(job.count, latencies_ms=found)


JOBS = {"send": send, "consume": consume, "latency": latency}


def main() -> None:
    records = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no result
    job = Job.from_json(sys.argv[1])
    status = 1
    try:
        records.write(json.dumps(JOBS[job.kind](job)) + "\n")
        records.flush()
        status = 0
    except Exception:  # noqa: BLE001 - it goes to whoever started this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # without the goodbyes of the library, which take seconds


if __name__ == "__main__":
    main()

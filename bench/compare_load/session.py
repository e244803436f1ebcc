"""What is done to a running system: topics, clients in processes of their own, counting."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.client_load.job import Job
from bench.compare_load.lines import REPORT_INTERVAL_MS, Line, parse_lines
from bench.compare_load.systems import System
from bench.harness import BenchError
from skylark.client.core.broker_calls import BrokerCalls, open_caller
from skylark.core.errors import SkylarkError
from skylark.sync import Admin, NotFoundError
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.java import JavaProcess

QUEUES: Final = 8
#: The ends of more queues do not fit into one answer, as our administration reads it.
QUEUES_ASKED_AT_ONCE: Final = 1_000
ADMIN_TIMEOUT_S: Final = 30.0
LOOK_INTERVAL_S: Final = 0.5
CLIENT_HEAP_MB: Final = 512
JOB_TIMEOUT_S: Final = 900.0
#: For what is under way: new routes, queues that are filled behind the log.
SETTLE_S: Final = 30.0
PAUSE_S: Final = 2.0
#: For the messages of the warm-up.
WARM_UP_TIMEOUT_S: Final = 300.0
FILL_PORTION: Final = 200_000
_PACKAGE: Final = "org.apache.rocketmq.example.benchmark"


@dataclass(frozen=True)
class Timing:
    """How long, and how much."""

    seconds: float = 20.0
    warm_up_s: float = 10.0
    messages: int = 1_000_000  #: to catch up with
    warm_up_messages: int = 300_000  #: before the first row of a session
    pause_s: float = PAUSE_S


@dataclass(frozen=True)
class Mark:
    """Where a system was at a moment."""

    at_s: float  #: of a clock that only measures
    clock_s: float  #: of the epoch
    processor_s: float


class JavaClient(JavaProcess):
    """One of the official benchmark programs."""

    def __init__(self, program: str, options: dict[str, str], folder: Path) -> None:
        super().__init__(program, main_class="Leashed", folder=folder, heap_mb=CLIENT_HEAP_MB)
        self._program = program
        self._options = options | {"ri": str(REPORT_INTERVAL_MS)}
        self._seen: list[str] = []

    def arguments(self) -> list[str]:
        pairs = [(f"-{name}", value) for name, value in self._options.items()]
        return [f"{_PACKAGE}.{self._program}", *itertools.chain.from_iterable(pairs)]

    def wait_ready(self) -> None:
        """It works from its start."""

    def work(self, seconds: float, look: Callable[[], None] | None = None) -> None:
        """Let it work for so long, and look now and then; raises if it ends meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self.running:
                raise self.failure("ended early")
            if look is not None:
                look()
            time.sleep(min(left, LOOK_INTERVAL_S))

    def lines(self) -> list[Line]:
        """The statistics so far."""
        self._seen += self.waiting_lines()
        return parse_lines(self._seen)

    def close(self) -> None:
        self.kill()  # the programs know no orderly end
        super().close()


def settle_disk(pause_s: float) -> None:
    """Let the system write what it still holds, so that the next does not pay for it."""
    os.sync()
    time.sleep(pause_s)


class Session:
    """One start of a system."""

    def __init__(self, system: System, admin: Admin, timing: Timing) -> None:
        self.system = system
        self.admin = admin
        self.timing = timing
        self._numbers = itertools.count(1)
        self._full: dict[int, tuple[str, int]] = {}
        self._queues: dict[str, int] = {}
        self._is_warm = False

    # ---- topics and groups -----------------------------------------------------------------------

    def topic(self, queues: int = QUEUES, attributes: Mapping[str, str] | None = None) -> str:
        """A new topic that clients can find."""
        name = f"compare-{next(self._numbers)}"
        self.admin.topics.create(name, queue_count=queues, attributes=attributes)
        self._queues[name] = queues
        self.wait_until(lambda: self._has_route(name), f"a route of {name}")
        return name

    def _has_route(self, topic: str) -> bool:
        with suppress(SkylarkError):
            return bool(self.admin.topics.route(topic).queue_datas)
        return False

    def group_at_start(self, topic: str) -> str:
        """A new group that will read the topic from its first message."""
        name = f"compare-group-{next(self._numbers)}"
        self.admin.groups.create(name)
        queues = [stats.queue for stats in self.admin.offsets.bounds(topic).queues]
        self.admin.offsets.commit(name, dict.fromkeys(queues, 0))
        return name

    def full_topic(self, body_size: int) -> tuple[str, int]:
        """A topic to catch up with, made once, and how many messages it must have."""
        if body_size not in self._full:
            topic, acknowledged = self.topic(), 0
            for first in range(0, self.timing.messages, FILL_PORTION):
                count = min(FILL_PORTION, self.timing.messages - first)
                acknowledged += self.client("send", "submitted", topic, count, body_size)["stored"]
            settle_disk(self.timing.pause_s)
            self._full[body_size] = topic, acknowledged
        return self._full[body_size]

    # ---- counting --------------------------------------------------------------------------------

    def stored(self, topic: str) -> int:
        """How many messages a topic has, by the ends of its queues."""
        if (queues := self._queues[topic]) > QUEUES_ASKED_AT_ONCE:
            return asyncio.run(self._stored_by_queue(topic, queues))
        return sum(stats.max_offset for stats in self.admin.offsets.bounds(topic).queues)

    def watcher(self, topic: str) -> tuple[list[tuple[float, int]], Callable[[], None]]:
        """Looks at how many messages a topic has, and what takes one; none of very many queues."""
        looks: list[tuple[float, int]] = []

        def look() -> None:
            if self._queues[topic] <= QUEUES_ASKED_AT_ONCE:
                looks.append((time.time(), self.stored(topic)))

        return looks, look

    async def _stored_by_queue(self, topic: str, queues: int) -> int:
        """The same, queue by queue."""
        name = self.admin.topics.route(topic).queue_datas[0].broker_name
        found = 0
        async with open_caller() as caller:
            calls = BrokerCalls(caller, ADMIN_TIMEOUT_S)
            for first in range(0, queues, QUEUES_ASKED_AT_ONCE):
                ends = [
                    calls.max_offset(
                        self.system.broker,
                        MessageQueue(topic=topic, broker_name=name, queue_id=number),
                    )
                    for number in range(first, min(queues, first + QUEUES_ASKED_AT_ONCE))
                ]
                found += sum(await asyncio.gather(*ends))
        return found

    def consumed(self, group: str, topic: str) -> int:
        """How far a group has come."""
        try:
            progress = self.admin.groups.progress(group, topic)
        except NotFoundError:
            return 0
        return sum(queue.consumer_offset for queue in progress.queues if queue.queue.topic == topic)

    def stored_finally(self, topic: str, expected: int) -> int:
        """The same when queues have followed the log, or after a while."""
        with suppress(BenchError):
            self.wait_until(lambda: self.stored(topic) >= expected, "all messages")
        return self.stored(topic)

    def read_back(self, topic: str, expected: int) -> int:
        """How many different messages a topic has, by reading all of them."""
        self.stored_finally(topic, expected)
        return int(self.client("stored", "msgId", topic, 0, 0)["different"])

    def mark(self) -> Mark:
        return Mark(time.perf_counter(), time.time(), self.system.processor_s())

    @staticmethod
    def wait_until(check: Callable[[], bool], what: str, timeout_s: float = SETTLE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not check():
            if time.monotonic() > deadline:
                raise BenchError(f"{what}: not within {timeout_s:g} s")
            time.sleep(0.05)

    # ---- clients ---------------------------------------------------------------------------------

    def java(self, program: str, topic: str, **options: str | int) -> JavaClient:
        """One of the official programs; it runs while its block does."""
        words = {name: str(value) for name, value in options.items()}
        words = {"n": self.system.namesrv, "t": topic} | words
        return JavaClient(program, words, self.system.folder / f"client-{next(self._numbers)}")

    def client(self, kind: str, how: str, topic: str, count: int, body_size: int) -> dict[str, Any]:
        """A job of our client (:mod:`bench.client_load.ours`)."""
        group = f"compare-group-{next(self._numbers)}"
        job = Job(kind, how, self.system.namesrv, topic, count, body_size, group)
        return self.python("bench.client_load.ours", job.to_json())

    @staticmethod
    def python(module: str, *arguments: str) -> dict[str, Any]:
        """Run a module of ours to its end; the JSON in its last line."""
        command = [sys.executable, "-m", module, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{module} takes longer than {JOB_TIMEOUT_S:g} s") from error
        if done.returncode or not done.stdout:
            why = (done.stderr.splitlines() or ["it said nothing"])[-1]
            raise BenchError(f"{module} failed: {why}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def warm(self) -> int:
        """Load that is not measured, once: a Java server compiles itself while it works.

        Its first 100,000 messages cost it three times as much as later ones. Returns the number of
        messages, 0 if the system is warm.
        """
        if self._is_warm or not self.timing.warm_up_messages:
            return 0
        topic = self.topic()
        with self.java("Producer", topic, w=16, s=1024) as client:
            deadline = time.monotonic() + WARM_UP_TIMEOUT_S
            while (count := self.stored(topic)) < self.timing.warm_up_messages:
                if time.monotonic() > deadline:
                    raise BenchError(f"warm-up: {count} messages in {WARM_UP_TIMEOUT_S:g} s")
                client.work(LOOK_INTERVAL_S)
        self._is_warm = True
        return count

"""A broker under load: many consumers connected, messages sent at a steady rate, for minutes.

``make bench PART=broker_load``; ``ARGS="--seconds 20 --connections 200 --rate 500"`` makes it
smaller, ``ROWS='one group'`` picks a row, ``ARGS="--json FILE"`` appends the figures to a file.

The broker is a process of its own (``skylark up``, its data on the disk of the checkout), this
process generates the load, and both meet on loopback. Two shapes, one after the other, each held
for ``--seconds`` (300) with ``--connections`` (1,000) consumers and ``--rate`` (2,000) messages a
second:

``groups of 10``  a topic with ten queues for each group, so every consumer owns a queue
``one group``     all consumers join one group at the same moment; a topic with a queue for each

A consumer does what a push consumer of Java does: a connection of its own, a heartbeat every 30 s,
one pull that the broker holds until there is a message, and the next pull as soon as that has come.
When it hears that its group has changed (request 40), it asks who is in the group. Its queue is
fixed, because dividing queues is the work of clients.

Messages are sent when they are due, whether or not earlier ones were answered, and the time of a
send counts from the moment at which it was due: a broker that stalls is charged for all that waited
meanwhile. A late generator is charged to the broker as well; how late it was is a figure too.

No error means: every send is stored, every pull and heartbeat answered as it should be, no
connection lost, every message delivered exactly once, no warning in the log of the broker. Memory
is what the process has for itself (``RssAnon``); pages of mapped files belong to the system, which
takes them back at will. Its slope is that of a straight line through the samples of the second half
of a shape, when buffers have found their size. Those of a thousand queues would take longer, so
they are set smaller here (``consumeQueueRecentSize``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TextIO

from bench.harness import BenchError, Ledger, current_commit, machine_facts, run_program
from bench.load.clients import ID_END, Client, Consumer, Producer, Tally
from skylark.net.event_loop import new_event_loop
from skylark.wire.codes import Perm, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import CreateTopicRequestHeader

BENCH = "broker_load"
SETTINGS = ("consumeQueueRecentSize=2000",)
GROUP_SIZE = 10
PRODUCERS = 10
TICK_S = 0.002
HEARTBEAT_S = 30.0
SAMPLE_S = 1.0
#: Time for what is under way at the end: answers, deliveries, the list of a large group.
SETTLE_S = 30.0

SEND_P99_MS_MAX = 50.0
GROWTH_MIB_PER_MINUTE_MAX = 1.0
#: Told of each join, the first of a thousand members would hear a thousand notices.
NOTICES_PER_MEMBER_MAX = 50.0

MIB = 1 << 20


# ---- figures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One number of a shape, and what it has to be, if anything."""

    name: str
    value: float
    unit: str
    goal: str | None = None
    goal_met: bool | None = None


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    return Figure(name, value, unit, f"at most {limit:g}", value <= limit)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of all does not exceed."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """How much the second value grows with the first: least squares."""
    if len(samples) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*samples, strict=True)).slope


def format_rows(figures: Iterable[Figure]) -> str:
    lines = []
    for figure in figures:
        goal = ""
        if figure.goal is not None:
            goal = f"goal {figure.goal}: {'met' if figure.goal_met else 'MISSED'}"
        lines.append(f"  {figure.name:<34} {figure.value:14,.2f} {figure.unit:<12} {goal}".rstrip())
    return "\n".join(lines)


# ---- the broker ---------------------------------------------------------------------------------


class BrokerProcess:
    """``skylark up`` in a folder."""

    def __init__(self, folder: Path, settings: Iterable[str]) -> None:
        self._log = folder / "log.txt"
        self._lines_seen = 0
        arguments = [sys.executable, "-m", "skylark", "up", "--data", str(folder / "data")]
        arguments += ["--namesrv-port", "0", "--broker-port", "0"]
        arguments += [part for pair in settings for part in ("--set", pair)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline().decode()
        if not ready.startswith("ready "):
            self._process.wait()
            raise BenchError(f"the broker did not start: {self._log.read_text()[-500:]}")
        self.namesrv, _, broker = (
            ready.removeprefix("ready namesrv=").strip().partition(" broker-a=")
        )
        host, _, port = broker.rpartition(":")
        self.address = (host, int(port))

    def memory(self) -> tuple[float, float]:
        """MiB of its own, and with pages of files that are mapped."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        sizes = dict(line.split(":", 1) for line in status.splitlines())
        own, resident = (int(sizes[key].split()[0]) * 1024 / MIB for key in ("RssAnon", "VmRSS"))
        return own, resident

    def processor_s(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def complaints(self) -> list[str]:
        """Warnings and errors in its log since the last call."""
        lines = self._log.read_text().splitlines()
        new, self._lines_seen = lines[self._lines_seen :], len(lines)
        return [line for line in new if " WARNING " in line or " ERROR " in line]

    def stop(self) -> int:
        self._process.terminate()
        code = self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


@contextlib.contextmanager
def broker_process(settings: Iterable[str]) -> Iterator[BrokerProcess]:
    """On the disk of the checkout: a folder in memory would not show what a disk costs."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-load-") as name:
        broker = BrokerProcess(Path(name), settings)
        try:
            yield broker
        finally:
            broker.stop()


# ---- a shape ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """How consumers are divided into groups; each group has a topic with a queue per member."""

    name: str
    prefix: str
    group_count: int
    group_size: int


def shapes(connections: int) -> list[Shape]:
    groups = max(1, connections // GROUP_SIZE)
    return [
        Shape(f"groups of {GROUP_SIZE}", "small", groups, min(connections, GROUP_SIZE)),
        Shape("one group", "large", 1, connections),
    ]


class Run:
    """One shape from the first connection to the last."""

    def __init__(self, broker: BrokerProcess, shape: Shape, seconds: float, rate: int) -> None:
        self._broker = broker
        self._shape = shape
        self._seconds = seconds
        self._rate = rate
        self._tally = Tally()
        self._memory: list[tuple[float, float]] = []
        self._resident: list[float] = []
        self._joined_s = math.nan
        self._queues = [
            (self._topic(group), queue_id)
            for queue_id in range(shape.group_size)
            for group in range(shape.group_count)
        ]
        self._consumers: list[Consumer] = []
        self._producers: list[Producer] = []

    def _topic(self, group: int) -> str:
        return f"load-{self._shape.prefix}-{group}"

    async def run(self) -> list[Figure]:
        loop = asyncio.get_running_loop()
        await self._connect()
        processor_s = self._broker.processor_s()
        jobs = [
            loop.create_task(job)
            for job in (self._join(), self._send(), self._beat(), self._watch_memory())
        ]
        await asyncio.sleep(self._seconds)
        for job in jobs[1:]:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        processor_s = self._broker.processor_s() - processor_s
        await self._settle(
            lambda: (
                self._tally.delivered >= self._tally.stored
                and not any(producer.waiting_count for producer in self._producers)
            )
        )
        for client in (*self._consumers, *self._producers):
            client.close()
        for job in jobs:
            if not job.cancelled() and (error := job.exception()) is not None:
                raise error
        return self._figures(processor_s)

    async def _settle(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + SETTLE_S
        while not done():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _connect(self) -> None:
        loop, shape, tally = asyncio.get_running_loop(), self._shape, self._tally
        host, port = self._broker.address
        self._producers = [Producer(tally, f"p{number}{ID_END}") for number in range(PRODUCERS)]
        self._consumers = [
            Consumer(tally, f"{topic}-{queue_id}{ID_END}", f"g-{topic}", topic, queue_id)
            for topic, queue_id in self._queues
        ]

        async def connect(client: Client) -> None:
            await loop.create_connection(lambda: client, host, port)

        await asyncio.gather(*map(connect, (*self._producers, *self._consumers)))
        created: list[asyncio.Future[Command]] = []
        for group in range(shape.group_count):
            header = CreateTopicRequestHeader(
                topic=self._topic(group),
                default_topic="TBW102",
                read_queue_nums=shape.group_size,
                write_queue_nums=shape.group_size,
                perm=Perm.READ | Perm.WRITE,
                topic_filter_type="SINGLE_TAG",
            )
            future: asyncio.Future[Command] = loop.create_future()
            created.append(future)
            ext = encode_ext(header)
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            self._producers[0].request(code, ext, None, future.set_result)
        for answer in await asyncio.gather(*created):
            self._producers[0].expect("topic", answer, ResponseCode.SUCCESS)

    async def _join(self) -> None:
        """Everybody at once; over when each has heard of all members of its group."""
        began = time.monotonic()
        for consumer in self._consumers:
            consumer.join()
        size = self._shape.group_size
        if await self._settle(lambda: all(c.known_count == size for c in self._consumers)):
            self._joined_s = time.monotonic() - began
        else:
            self._tally.error(f"not everybody has heard of all {size} members")

    async def _send(self) -> None:
        clients, queues = itertools.cycle(self._producers), itertools.cycle(self._queues)
        numbers = itertools.count()
        began = time.monotonic()
        while True:
            due_count = int((time.monotonic() - began) * self._rate) + 1 - self._tally.sent
            for number in itertools.islice(numbers, due_count):
                next(clients).send(*next(queues), number, began + number / self._rate)
            await asyncio.sleep(TICK_S)

    async def _beat(self) -> None:
        """Heartbeats of everybody, spread over the interval."""
        clients: list[Client] = [*self._producers, *self._consumers]
        for producer in self._producers:
            producer.beat()
        began = time.monotonic()
        for number, client in enumerate(itertools.cycle(clients), start=1):
            due_at = began + number * HEARTBEAT_S / len(clients)
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            client.beat()

    async def _watch_memory(self) -> None:
        while True:
            own, resident = self._broker.memory()
            self._memory.append((time.monotonic(), own))
            self._resident.append(resident)
            await asyncio.sleep(SAMPLE_S)

    def _figures(self, processor_s: float) -> list[Figure]:
        tally, members = self._tally, len(self._consumers)
        latencies, lateness = sorted(tally.latencies_ms), sorted(tally.lateness_ms)
        for complaint in self._broker.complaints():
            tally.error(f"log of the broker: {complaint}")
        missing = tally.stored - tally.delivered
        growth = slope(self._memory[len(self._memory) // 2 :]) * 60
        own = [size for _, size in self._memory]
        return [
            Figure("connections", members + len(self._producers), ""),
            at_most("errors", sum(tally.errors.values()), "", 0),
            Figure("sent", tally.sent, "messages"),
            at_most("sent and not stored", tally.sent - tally.stored, "messages", 0),
            at_most("stored and not delivered", abs(missing), "messages", 0),
            Figure("rate", tally.stored / self._seconds, "messages/s"),
            Figure("send p50", percentile(latencies, 0.5), "ms"),
            at_most("send p99", percentile(latencies, 0.99), "ms", SEND_P99_MS_MAX),
            Figure("send max", percentile(latencies, 1.0), "ms"),
            Figure("generator late p99", percentile(lateness, 0.99), "ms"),
            Figure("pulls", tally.pulls / self._seconds, "/s"),
            Figure("heartbeats", tally.heartbeats, ""),
            Figure("all know their group after", self._joined_s, "s"),
            at_most(
                "change notices", tally.notices / members, "per member", NOTICES_PER_MEMBER_MAX
            ),
            Figure("lists of members", tally.lists, ""),
            Figure("processor", 100 * processor_s / self._seconds, "% of a core"),
            Figure("memory at the end", own[-1], "MiB"),
            Figure("with mapped files", self._resident[-1], "MiB"),
            at_most("memory grows", growth, "MiB/minute", GROWTH_MIB_PER_MINUTE_MAX),
        ]

    def errors(self) -> list[str]:
        """What went wrong, most often first."""
        return [f"{count} x {text}" for text, count in self._tally.errors.most_common(10)]


# ---- the command --------------------------------------------------------------------------------


def to_entry(
    shape: Shape, options: argparse.Namespace, figure: Figure, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "bench": BENCH,
        "case": f"{shape.name}: {figure.name}",
        "commit": current_commit(Path(__file__).parent),
        "seconds": options.seconds,
        "connections": options.connections,
        "rate": options.rate,
        "value": None if math.isnan(figure.value) else figure.value,
        "unit": figure.unit,
        "goal": figure.goal,
        "goal_met": figure.goal_met,
        "machine": facts,
    }


def select(found: Sequence[Shape], rows: str) -> list[Shape]:
    patterns = [pattern.strip() for pattern in rows.split(",") if pattern.strip()] or ["*"]
    chosen = [s for s in found if any(fnmatchcase(s.name, pattern) for pattern in patterns)]
    if not chosen:
        raise BenchError(f"no row matches {rows}; there are: {', '.join(s.name for s in found)}")
    return chosen


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether all goals are met."""
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of shapes")
    parser.add_argument("--json", type=Path, help="append the figures to this file")
    parser.add_argument("--seconds", type=float, default=300.0, help="to hold each shape")
    parser.add_argument("--connections", type=int, default=1_000, help="consumers")
    parser.add_argument("--rate", type=int, default=2_000, help="messages per second")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for the broker")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.connections < 1 or options.rate < 1:
        raise BenchError("--seconds, --connections and --rate must be positive")
    chosen = select(shapes(options.connections), options.rows)
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    facts = machine_facts()
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    all_met = True
    with (
        broker_process((*SETTINGS, *options.set)) as broker,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        for shape in chosen:
            shape_run = Run(broker, shape, options.seconds, options.rate)
            figures = runner.run(shape_run.run())
            stdout.write(f"{shape.name}, {options.seconds:g} s\n{format_rows(figures)}\n")
            for error in shape_run.errors():
                stdout.write(f"  ERROR {error}\n")
            stdout.flush()
            all_met &= all(figure.goal_met is not False for figure in figures)
            if options.json:
                ledger = Ledger(options.json)
                for figure in figures:
                    ledger.append(to_entry(shape, options, figure, facts))
    return all_met


if __name__ == "__main__":
    run_program(BENCH, run)

"""The samples of the Spark benchmark: how each row is done once. :mod:`bench.spark` says what."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from bench.broker_load import slope
from bench.spark_load.site import TASKS, Site
from bench.spark_load.watching import JVM, PYTHON, MemoryWatch, processor_s
from skylark.spark.jobs import archive_job as archive
from tests.interop.answered import answered_requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Messages of one sample, by size of the body.
READ_COUNT = {100: 1_000_000, 1024: 300_000}
PUSH_COUNT = 100_000
SINK_COUNT = {100: 400_000, 1024: 150_000}
ONCE_COUNT = {100: 60_000, 1024: 40_000}
WARM_ARCHIVE_COUNT = 100_000
JUDGED_FROM_S = 20.0
GROWTH_SHARE_MAX = 0.1  # of memory, in the second half of a run
IDLE_S = 10.0
IDLE_REQUESTS_MAX = 6.0
IDLE_SHARE_MAX = 0.05  # of a core


@dataclass
class Sample:
    """So many rows in so much time, and what else was seen."""

    count: int
    wall_s: float
    notes: list[str] = field(default_factory=list)
    goals: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.count / self.wall_s


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def to_noop(frame: DataFrame) -> float:
    return seconds(frame.write.format("noop").mode("overwrite").save)


def ceiling(site: Site, columns: str, body_size: int) -> Sample:
    count = READ_COUNT[body_size]
    topic = site.full_topic(count, body_size)
    return Sample(count, to_noop(site.ready_rows(topic, columns, count)))


@pytest.mark.spec("spark.9.39")
def read(site: Site, columns: str, mode: str, body_size: int) -> Sample:
    """Source to noop."""
    count = READ_COUNT[body_size]
    topic = site.full_topic(count, body_size)
    found = site.stored(topic)
    return Sample(found, to_noop(site.rows_of(topic, columns, mode)))


def push(site: Site, body_size: int) -> Sample:
    topic = site.full_topic(READ_COUNT[body_size], body_size)
    found = site.client("consume", "per message", topic, PUSH_COUNT, body_size)
    return Sample(found["count"], found["wall_s"])


def clients(site: Site, body_size: int) -> Sample:
    """The accumulators of several clients at once; their rates together."""
    topic, count = site.topic(), SINK_COUNT[body_size] // TASKS
    with ThreadPoolExecutor(TASKS) as pool:
        runs = [
            pool.submit(site.client, "send", "submitted", topic, count, body_size)
            for _ in range(TASKS)
        ]
        rate = sum(found["count"] / found["wall_s"] for found in (run.result() for run in runs))
    return Sample(TASKS * count, TASKS * count / rate)


def sink(site: Site, delivery: str, body_size: int) -> Sample:
    count = (ONCE_COUNT if delivery == "exactly-once" else SINK_COUNT)[body_size]
    topic = site.topic()
    writer = (
        site.bodies(count, body_size)
        .write.format("rocketmq")
        .options(nameServer=site.namesrv, topic=topic, delivery=delivery)
        .mode("append")
    )
    sample = Sample(count, seconds(writer.save))
    if (found := site.stored(topic)) != count:
        sample.goals.append((f"{count} rows written, {found} there", False))
    return sample


def archived(site: Site, count: int) -> Sample:
    topic = site.full_topic(count, 100)
    output = site.folder / f"archive-{site.number()}"
    options = archive.ArchiveOptions(topics=(topic,), output=str(output), namesrv=site.namesrv)
    with MemoryWatch(site.jvm_pid) as watch:
        began = time.perf_counter()
        summary = archive.run(site.spark, options, lambda _: None)
        wall_s = time.perf_counter() - began
    sample = Sample(summary.rows, wall_s)
    stored = site.stored(topic)
    if summary.rows != stored:
        sample.goals.append((f"{stored} messages, {summary.rows} archived", False))
    for who in (JVM, PYTHON):
        sizes = watch.sizes[who][len(watch.sizes[who]) // 2 :]
        if len(sizes) < 2:
            continue
        level = statistics.median(size for _, size in sizes)
        growth = slope(sizes) * (sizes[-1][0] - sizes[0][0]) / level
        sample.notes.append(f"{who} {level:.0f} MiB {growth:+.0%}")
        if wall_s >= JUDGED_FROM_S:
            text = f"{who} grows by at most {GROWTH_SHARE_MAX:.0%}"
            sample.goals.append((text, growth <= GROWTH_SHARE_MAX))
    return sample


def warm_archive(site: Site, count: int) -> Sample:
    """The first archive: a small one before it is what Spark gets warm with."""
    archived(site, WARM_ARCHIVE_COUNT)
    return archived(site, count)


def idle(site: Site) -> Sample:
    """A stream that has nothing to do."""
    topic = site.full_topic(1_000, 100)
    frame = site.spark.readStream.format("rocketmq").options(
        nameServer=site.namesrv, topic=topic, startingOffsets="latest", group="idle"
    )
    checkpoint = site.folder / f"idle-{site.number()}"
    writer = frame.load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        time.sleep(IDLE_S / 2)  # what a query starts with
        requests = answered_requests(site.metrics_port).total()
        used_s, began = processor_s(site.jvm_pid), time.perf_counter()
        time.sleep(IDLE_S)
        wall_s = time.perf_counter() - began
        used_s = processor_s(site.jvm_pid) - used_s
        requests = answered_requests(site.metrics_port).total() - requests
    finally:
        query.stop()
    rate, share = requests / wall_s, used_s / wall_s
    goals = [
        (f"{IDLE_REQUESTS_MAX:g} requests/s", rate <= IDLE_REQUESTS_MAX),
        (f"{IDLE_SHARE_MAX:.0%} of a core", share < IDLE_SHARE_MAX),
    ]
    return Sample(requests, wall_s, [f"{share:.1%} of a core"], goals)

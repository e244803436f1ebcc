"""Helpers of tests that drive the sink without Spark: writers, queries, and what topics have."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from skylark import ClientOptions
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.clock import LoopClock
from skylark.spark.exactly_once.half_message_completion import HalfLocation, HalfMessageCompleter
from skylark.spark.sink.sink_client import SinkClient, sink_client
from skylark.spark.sink.sink_options import read_sink_options
from skylark.spark.sink.sink_writer import SinkWriter, batch_writer, stream_writer
from skylark.spark.sink.task_writer import TaskId
from skylark.sync import read_arrow

WAIT_S = 60.0
BODY: dict[str, DataType] = {"body": BinaryType()}
QUICK_CHECKS = (
    "--set", "transactionCheckInterval=500",
    "--set", "transactionTimeOut=1000",
    "--set", "transactionCheckMax=1000",
)  # fmt: skip


def schema(types: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def writer(site: str, types: Mapping[str, DataType] | None = None, **options: str) -> Any:
    """A batch writer as a task has it."""
    given = {"nameserver": site, **{name.lower(): value for name, value in options.items()}}
    made = batch_writer(given, schema(types or BODY), False)
    return pickle.loads(pickle.dumps(made))


def stream(site: str, **options: str) -> SinkWriter:
    given = {"nameserver": site, **{name.lower(): value for name, value in options.items()}}
    made = stream_writer(given, schema(BODY), False)
    assert isinstance(made, SinkWriter)
    return made


def bodies(values: Sequence[bytes | None]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["body"])])


def read(site: str, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in read_arrow(topic, ClientOptions(namesrv=site)):
        found.extend(part.to_pylist())
    return found


def count(site: str, topic: str) -> Counter[bytes]:
    return Counter(row["body"] for row in read(site, topic))


def until(is_so: Callable[[], bool], what: str) -> None:
    clock = LoopClock()
    deadline = clock.monotonic() + WAIT_S
    while not is_so():
        assert clock.monotonic() < deadline, what
        shared_portal().call(clock.sleep(0.05))


def client_of(site: str) -> SinkClient:
    return sink_client(read_sink_options({"nameserver": site, "topic": "T"}, {}))


class Query:
    """A streaming query as far as the sink sees it: two tasks per batch, rows by number."""

    def __init__(self, site: str, topic: str, sink: str, **options: str) -> None:
        self._site = site
        self._options = {"topic": topic, "delivery": "exactly-once", "txnImmunitySec": "2"}
        self._options |= options
        self.sink = sink

    def rows(self, batch: int, partition: int) -> list[bytes]:
        return [f"{self.sink}/{batch}/{partition}/{n}".encode() for n in range(20)]

    def everything(self, batches: int) -> Counter[bytes]:
        return Counter(row for b in range(batches) for p in range(2) for row in self.rows(b, p))

    def write(self, batch: int) -> list[WriterCommitMessage | None]:
        """The tasks of a batch; their messages as the driver gets them."""
        tasks = pickle.loads(pickle.dumps(stream(self._site, **self._options)))
        messages = [
            tasks.write_task(
                bodies(self.rows(batch, partition)),
                TaskId(sink=self.sink, batch=batch, partition=partition),
            )
            for partition in range(2)
        ]
        return list(pickle.loads(pickle.dumps(messages)))

    def commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        stream(self._site, **self._options).commit_batch(messages, batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        stream(self._site, **self._options).abort_batch(messages)

    def run(self, batch: int) -> list[WriterCommitMessage | None]:
        messages = self.write(batch)
        self.commit(messages, batch)
        return messages


class CrashError(Exception):
    """The driver dies here."""


def crash_after(patch: pytest.MonkeyPatch, ends: int) -> None:
    """Let the driver die after so many ends."""
    real, left = HalfMessageCompleter._end_together, [ends]

    async def end(
        self: HalfMessageCompleter, places: Sequence[HalfLocation], what: int
    ) -> Sequence[int] | None:
        if left[0]:
            places, left[0] = places[: left[0]], max(0, left[0] - len(places))
            await real(self, places, what)
        if not left[0]:
            raise CrashError
        return [0] * len(places)

    patch.setattr(HalfMessageCompleter, "_end_together", end)

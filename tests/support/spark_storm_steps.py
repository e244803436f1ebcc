"""The steps of a query at which something can be killed; for :mod:`tests.support.spark_storm`.

Imported by Spark's Python processes, of a query that reads and writes :class:`StormSource` instead
of ``rocketmq``: importing it there wraps the functions of the connector that a step belongs to. A
*plan* is a file, so that all processes see it at once; the process in which its step is reached for
the so-manieth time renames it, so that it happens once, and kills whom the plan names::

    worker   itself: a task, or the process that plans, reads offsets or commits for the driver
    driver   the JVM, the Python program that started it, and itself
    others   a server: broker, namesrv or resolver; the step goes on without it
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from skylark.spark.data_source import DefaultSource
from skylark.spark.exactly_once import half_message_completion as halves
from skylark.spark.exactly_once import half_message_sender as half_sending
from skylark.spark.exactly_once.half_message_completion import HalfMessageCompleter
from skylark.spark.exactly_once.half_message_sender import HalfMessageSender
from skylark.spark.exactly_once.txn_log import TxnLog
from skylark.spark.exactly_once.txn_log_records import Decision, Done, LogRecord, Manifest
from skylark.spark.sink.sink_sender import SinkSender
from skylark.spark.sink.sink_writer import StreamWriter, stream_writer
from skylark.spark.source.schema import schema_columns
from skylark.spark.source.source_options import source_options
from skylark.spark.source.source_readers import StreamReader

#: Names the folder of the run, in the environment of all its processes.
FOLDER_VARIABLE: Final = "SPARK_STORM_FOLDER"
#: If it is set, rows are written one by one.
SINGLE_VARIABLE: Final = "SPARK_STORM_SINGLE"
PLAN_FILE: Final = "plan.json"
DRIVER_FILE: Final = "driver.json"
STOP_FILE: Final = "stop"

READ_STEPS: Final = ("latest", "ranges", "read")
WRITE_STEPS: Final = (
    "send", "sent",
    "half", "half stored",
    "manifest", "manifest stored",
)  # fmt: skip
COMMIT_STEPS: Final = (
    "decision", "decision stored",
    "end", "ended",
    "done", "done stored",
    "committed",
)  # fmt: skip
#: Steps that a batch takes more than once: for each row, or for each portion of rows.
MANY: Final = frozenset({"half", "half stored", "end", "ended"})
_RECORDS: Final = {Manifest: "manifest", Decision: "decision", Done: "done"}


class Plan(msgspec.Struct, kw_only=True):
    """Whom to kill, and when."""

    number: int
    victim: str
    step: str
    count: int  #: the step is reached for this time, in all processes together
    pid: int = 0  #: of the server, if the victim is one


class Driver(msgspec.Struct, kw_only=True):
    """The processes of a driver."""

    jvm: int
    program: int


def fired_file(folder: Path, number: int) -> Path:
    """There as soon as the plan with this number has struck."""
    return folder / f"fired-{number}.json"


def put_file(path: Path, content: object) -> None:
    """Write a file that others see whole or not at all."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(content))
    draft.replace(path)


def _count(path: Path) -> int:
    """Count one more, in a file that all processes share."""
    with path.open("ab") as file:
        file.write(b".")
        file.flush()
        return file.tell()


def reached(step: str) -> None:
    """A step begins or has ended; does not return if the plan is that this process ends here."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    try:
        plan = msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=Plan)
    except FileNotFoundError:
        return
    if plan.step != step:
        return
    if _count(folder / f"count-{plan.number}") < plan.count:
        return
    try:
        (folder / PLAN_FILE).rename(fired_file(folder, plan.number))
    except FileNotFoundError:
        return  # another process was faster
    if plan.pid:
        os.kill(plan.pid, signal.SIGKILL)
        return
    if plan.victim == "driver":
        driver = msgspec.json.decode((folder / DRIVER_FILE).read_bytes(), type=Driver)
        os.kill(driver.jvm, signal.SIGKILL)
        os.kill(driver.program, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


# ---- where the steps are -------------------------------------------------------------------------


def _wrap(owner: type, name: str, before: str, after: str) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def wrapped(*args: Any) -> Any:
        reached(before)
        result = await real(*args)
        reached(after)
        return result

    setattr(owner, name, wrapped)


def _wrap_append() -> None:
    real = TxnLog.append

    async def append(log: TxnLog, record: LogRecord) -> int:
        kind = _RECORDS.get(type(record), "other")
        reached(kind)
        offset = await real(log, record)
        reached(f"{kind} stored")
        return offset

    TxnLog.append = append  # type: ignore[method-assign, assignment]


def _make_single() -> None:
    """Send halves and ends one by one, as to a broker that does not take many at once."""

    async def not_together(*_: object) -> bool:
        return False

    async def unknown(*_: object) -> None:
        return None

    HalfMessageSender._try_together = not_together  # type: ignore[method-assign, assignment]
    HalfMessageCompleter._end_together = unknown  # type: ignore[method-assign, assignment]


def _install() -> None:
    """Wrap the connector, in the processes of a storm and in no other that imports this."""
    # Batches are small here, and portions of them smaller: several requests for each.
    half_sending.PORTION_COUNT = 10  # type: ignore[misc]
    halves.PORTION_COUNT = 10  # type: ignore[misc]
    _wrap(SinkSender, "_send", "send", "sent")
    _wrap(HalfMessageSender, "_send", "half", "half stored")
    _wrap(HalfMessageCompleter, "_call", "end", "ended")
    _wrap_append()
    if os.environ.get(SINGLE_VARIABLE):
        _make_single()


if FOLDER_VARIABLE in os.environ:
    _install()


class StormReader(StreamReader):
    """A reader with steps."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            reached("latest")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = super().partitions(start, end)
        reached("ranges")
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch.slice(0, batch.num_rows // 2)
            reached("read")
            yield batch.slice(batch.num_rows // 2)


class StormWriter(StreamWriter):
    """A writer with steps."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        reached("committed")


class StormSource(DefaultSource):
    """``rocketmq`` with steps."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StormReader(source_options(self.options, streaming=True), schema_columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        made = stream_writer(self.options, schema, overwrite)
        assert isinstance(made, StreamWriter)
        return StormWriter(made.options, made.plan)


class PlainSource(StormSource):
    """Of the query that writes at least once.

    Two queries that share a registered source can spoil it for good when they start at once: Spark
    keeps one map of environment variables with it, and both put their own into it.
    """

    @classmethod
    def name(cls) -> str:
        return "plain"


class ExactSource(StormSource):
    """Of the query that writes exactly once."""

    @classmethod
    def name(cls) -> str:
        return "exact"

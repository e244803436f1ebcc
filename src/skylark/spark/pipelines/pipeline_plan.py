"""Plan of a pipeline: what a run would do, for ``skylark pipeline check`` and ``plan``.

:func:`check_outside` checks the checkpoint and the cluster without Spark, for all pipelines before
a session starts. :func:`make_plan` has Spark analyse the query.

:func:`try_from_executors` (``check --executors``) checks whether executors reach the brokers. If
routes have addresses that only the driver can reach, a query starts and then fails in every task.
So one task per core opens a connection to each address.
"""

from __future__ import annotations

import io
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile
from skylark.spark.pipelines.pipeline_start import (
    Start,
    check_checkpoint,
    file_checkpoints,
    find_start,
    name_in_errors,
    sink_brokers,
    source_snapshot,
)
from skylark.spark.pipelines.query_builder import build

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ANALYSED: Final = re.compile(
    r"== Analyzed Logical Plan ==\n(?P<types>.*?)\n(?P<plan>.*?)\n\n== Optimized", re.DOTALL
)
_SECRETS: Final = ("accesskey", "secretkey", "securitytoken")


class PipelinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """An analysed pipeline."""

    pipeline: Pipeline
    start: Start
    columns: dict[str, str]  #: name -> type of the columns that the sink gets
    query: str  #: the analysed logical plan of Spark

    @property
    def reads(self) -> str:
        options = self.pipeline.source.options
        return options.topics_pattern or ", ".join(options.topics)

    @property
    def writes(self) -> str:
        sink = self.pipeline.sink
        topic = sink.topic_options.topic if sink.topic_options is not None else None
        delivery = f" ({sink.topic_options.delivery})" if sink.topic_options is not None else ""
        return f"{sink.format} {sink.path or topic or ''}".rstrip() + delivery

    @property
    def transforms(self) -> str | None:
        steps = ("sql" if self.pipeline.sql else None, self.pipeline.python)
        return ", ".join(filter(None, steps)) or None


def check_outside(document: PipelineFile, pipeline: Pipeline, *, strict: bool) -> Start:
    """Check checkpoint, topics and brokers; raises SkylarkError.

    Unless ``strict``, a pipeline that has run before may start while some of its brokers are down.
    """
    with name_in_errors(pipeline):
        check_checkpoint(pipeline, document)
        start = find_start(pipeline, file_checkpoints(document), strict=strict)
        if strict or not start.batch:
            sink_brokers(pipeline)
    return start


def make_plan(
    spark: SparkSession, document: PipelineFile, pipeline: Pipeline, start: Start
) -> PipelinePlan:
    """Analyse a pipeline; raises SkylarkError."""
    frame = build(spark, document, pipeline)
    columns = {field.name: field.dataType.simpleString() for field in frame.schema}
    return PipelinePlan(
        pipeline=pipeline, start=start, columns=columns, query=_query(frame, pipeline)
    )


def _query(frame: DataFrame, pipeline: Pipeline) -> str:
    """Spark's plan, without passwords: it contains the options of sources."""
    output = io.StringIO()
    with redirect_stdout(output):
        frame.explain(extended=True)
    found = _ANALYSED.search(output.getvalue())
    text = found["plan"] if found else output.getvalue().strip()
    for name, secret in pipeline.source.given.items():
        if name.lower() in _SECRETS:
            text = text.replace(secret, "***")
    return text


CONNECT_TIMEOUT_S: Final = 5.0
_SCHEMA: Final = "host string, address string, problem string"
#: Spark splits so many rows into one partition per core.
_ROWS: Final = 1_000


# ---- connectivity -------------------------------------------------------------------------------


class ConnectivityResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the tasks on one machine for one address."""

    host: str
    address: str
    tasks: int
    problem: str | None


def broker_addresses(pipelines: Iterable[Pipeline]) -> list[str]:
    """The broker addresses that the tasks of these pipelines connect to."""
    found: set[str] = set()
    for pipeline in pipelines:
        for addresses in source_snapshot(pipeline.source.options).addresses.values():
            found.update(addresses.values())
        found.update(sink_brokers(pipeline))
    return sorted(found)


def try_from_executors(spark: SparkSession, addresses: list[str]) -> list[ConnectivityResult]:
    """Connect from one task per core to each address."""
    with translate_pipeline_errors():
        rows = spark.range(_ROWS).mapInArrow(partial(_try_all, addresses), _SCHEMA).collect()
    counts = Counter((row.host, row.address, row.problem) for row in rows)
    ordered = sorted(counts.items(), key=lambda item: tuple(map(str, item[0])))
    return [
        ConnectivityResult(host=host, address=address, tasks=count, problem=problem)
        for (host, address, problem), count in ordered
    ]


def _try_all(addresses: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Connect to all addresses; runs in tasks."""
    import pyarrow as pa

    for _ in batches:
        pass
    host = socket.gethostname()
    rows = [
        {"host": host, "address": address, "problem": _problem(address)} for address in addresses
    ]
    names = ("host", "address", "problem")
    yield pa.RecordBatch.from_pylist(rows, schema=pa.schema([(n, pa.string()) for n in names]))


def _problem(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return None

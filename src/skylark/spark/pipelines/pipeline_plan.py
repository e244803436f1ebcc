"""Plan of a pipeline: what a run would do, for ``skylark pipeline check`` and ``plan``.

:func:`check_outside` checks the checkpoint and the cluster without Spark, for all pipelines before
a session starts. :func:`make_plan` has Spark analyse the query.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

import msgspec

from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile
from skylark.spark.pipelines.pipeline_start import (
    Start,
    check_checkpoint,
    file_checkpoints,
    find_start,
    name_in_errors,
    sink_brokers,
)
from skylark.spark.pipelines.query_builder import build

if TYPE_CHECKING:
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
    """Check checkpoint, topics and brokers; raises SkylarkError."""
    with name_in_errors(pipeline):
        check_checkpoint(pipeline, document)
        start = find_start(pipeline, file_checkpoints(document), strict=strict)
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
    said = io.StringIO()
    with redirect_stdout(said):
        frame.explain(extended=True)
    found = _ANALYSED.search(said.getvalue())
    text = found["plan"] if found else said.getvalue().strip()
    for name, secret in pipeline.source.given.items():
        if name.lower() in _SECRETS:
            text = text.replace(secret, "***")
    return text

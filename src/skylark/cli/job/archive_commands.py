"""``skylark job archive``: writes topics to files of a data lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    StreamGiven,
    format_option,
    running,
    show_spans,
    show_summary,
    stream_options,
)

if TYPE_CHECKING:
    from skylark.spark.jobs.archive_job import LakeFormat


@click.command(
    "archive", epilog="Example: skylark job archive orders payments --to /data/lake/orders"
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--to", "output", required=True, metavar="FOLDER", help="The lake.")
@format_option
@stream_options("archive", batch_rows=1_000_000)
@click.pass_obj
def command(
    context: CliContext,
    topics: tuple[str, ...],
    output: str,
    lake_format: LakeFormat,
    stream: StreamGiven,
) -> None:
    """Archive topics as files of a data lake.

    Archives the messages since the last run exactly once, with all columns, partitioned by day and
    topic. The default of --checkpoint is FOLDER.checkpoint. With --format iceberg, FOLDER is the
    name of a table.
    """
    from skylark.spark.jobs import archive_job as archive
    from skylark.spark.jobs.queue_spans import require_topics

    options = archive.ArchiveOptions(
        topics=topics,
        output=output,
        namesrv=stream.namesrv,
        format=lake_format,
        checkpoint=stream.checkpoint,
        interval_ms=stream.interval_ms,
        start=stream.start,
        tags=stream.tags,
        group=stream.group,
        rows_per_batch=stream.batch_rows or archive.ROWS_PER_BATCH,
    )
    require_topics(options.source)  # raises for missing topics before Spark starts
    with running(context, "archive", stream.master, stream.conf) as job:
        if stream.dry_run:
            spans = archive.plan(job.spark, options)
        else:
            summary = archive.run(job.spark, options, job.report, job.stop)
    if stream.dry_run:
        show_spans(context, spans)
    else:
        show_summary(context, summary)

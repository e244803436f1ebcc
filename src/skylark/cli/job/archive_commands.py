"""``skylark job archive``: writes topics to files of a data lake."""

from __future__ import annotations

from typing import Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    SparkGiven,
    format_option,
    plan_or_run,
    show_spans,
    stream_options,
)


@click.command(
    "archive", epilog="Example: skylark job archive orders payments --to /data/lake/orders"
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--to", "output", required=True, metavar="FOLDER", help="The lake.")
@format_option
@stream_options("archive", batch_rows=1_000_000)
@click.pass_obj
def command(context: CliContext, /, dry_run: bool, spark: SparkGiven, **given: Any) -> None:
    """Archive topics as files of a data lake.

    Archives the messages since the last run exactly once, with all columns, partitioned by day and
    topic. The default of --checkpoint is FOLDER.checkpoint. With --format iceberg, give
    [CATALOG.]NAMESPACE.TABLE in place of FOLDER, and --checkpoint.
    """
    from skylark.spark.jobs import archive_job as archive
    from skylark.spark.jobs.queue_spans import require_topics

    options = archive.ArchiveOptions(**given)
    require_topics(options.source)  # raises for missing topics before Spark starts
    spans = plan_or_run(context, "archive", spark, archive, options, dry_run=dry_run)
    if spans is not None:
        show_spans(context, spans)

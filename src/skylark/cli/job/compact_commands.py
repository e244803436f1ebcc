"""``skylark job compact``: writes the latest message of each key."""

from __future__ import annotations

from typing import Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    SparkGiven,
    dry_run_option,
    format_option,
    job_options,
    running,
    show_summary,
)


@click.command(
    "compact", epilog="Example: skylark job compact prices --to-lake /data/lake/prices --overwrite"
)
@click.argument("topic")
@click.option("--to-lake", metavar="FOLDER", help="Folder to write the rows to.")
@click.option("--to-topic", metavar="TOPIC", help="Topic to send the rows to.")
@click.option(
    "--key", default="keys", metavar="SQL", help="Key: a column, or a SQL expression over columns."
)
@format_option
@click.option("--overwrite", is_flag=True, help="Replace the content of the folder.")
@dry_run_option
@job_options
@click.pass_obj
def command(context: CliContext, /, dry_run: bool, spark: SparkGiven, **given: Any) -> None:
    """Keep only the latest message of each key.

    Drops keys whose latest message has the property DELETED=true, and messages without a key.
    With --dry-run it reads and counts everything, and writes nothing.
    """
    from skylark.spark.jobs import compact_job as compact
    from skylark.spark.jobs.queue_spans import queue_spans

    options = compact.CompactOptions(**given)
    queue_spans(options.source)  # raises for missing topics before Spark starts
    with running(context, "compact", spark) as job:
        work = compact.plan if dry_run else compact.run
        summary = work(job.spark, options, job.report, job.stop)
    show_summary(context, summary)
    if dry_run:
        context.output.info("dry run: nothing was written")

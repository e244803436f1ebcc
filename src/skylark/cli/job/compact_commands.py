"""``skylark job compact``: the latest message of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    dry_run_option,
    format_option,
    job_options,
    running,
    show_summary,
)

if TYPE_CHECKING:
    from skylark.spark.jobs.archive_job import LakeFormat


@click.command(
    "compact", epilog="Example: skylark job compact prices --to-lake /data/lake/prices --overwrite"
)
@click.argument("topic")
@click.option("--to-lake", metavar="FOLDER", help="A folder that gets the rows.")
@click.option("--to-topic", metavar="TOPIC", help="A topic that gets them as messages.")
@click.option(
    "--key",
    default="keys",
    show_default=True,
    metavar="SQL",
    help="The key: a column, or an expression over columns.",
)
@format_option
@click.option("--overwrite", is_flag=True, help="Replace what is in the folder.")
@dry_run_option
@job_options
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    to_lake: str | None,
    to_topic: str | None,
    key: str,
    lake_format: LakeFormat,
    overwrite: bool,
    dry_run: bool,
    namesrv: str | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Keep the latest row of each key.

    A key whose latest message has the property DELETED=true is left out, and so are messages
    without a key. With --dry-run everything is read and counted.
    """
    from skylark.spark.jobs import compact_job as compact
    from skylark.spark.jobs.queue_spans import queue_spans

    options = compact.CompactOptions(
        topic=topic,
        key=key,
        namesrv=namesrv,
        to_lake=to_lake,
        to_topic=to_topic,
        format=lake_format,
        overwrite=overwrite,
    )
    queue_spans(options.source)  # a topic that is not there is told before Spark starts
    with running(context, "compact", master, conf) as job:
        work = compact.plan if dry_run else compact.run
        summary = work(job.spark, options, job.report, job.stop)
    show_summary(context, summary)
    if dry_run:
        context.output.note("nothing was written")

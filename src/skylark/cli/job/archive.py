"""``skylark job archive``: topics as files of a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.context import CliContext
from skylark.cli.job.common import (
    checkpoint_option,
    dry_run_option,
    format_option,
    interval_option,
    job_options,
    running,
    show_spans,
    show_summary,
)

if TYPE_CHECKING:
    from skylark.spark.jobs.archive import LakeFormat


@click.command(
    "archive", epilog="Example: skylark job archive orders payments --to /data/lake/orders"
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--to", "output", required=True, metavar="FOLDER", help="The lake.")
@format_option
@interval_option
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="POSITION",
    help="Where the first run begins: earliest, latest, -2h, or offsets as JSON.",
)
@click.option("--tags", metavar="'A || B'", help="Only messages with these tags.")
@click.option("--group", help="Consumer group that shows how far the archive is.")
@click.option(
    "--batch-rows",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Rows of one batch at most.",
)
@checkpoint_option
@dry_run_option
@job_options
@click.pass_obj
def command(
    context: CliContext,
    topics: tuple[str, ...],
    output: str,
    lake_format: LakeFormat,
    interval_ms: int | None,
    start: str,
    tags: str | None,
    group: str | None,
    batch_rows: int,
    checkpoint: str | None,
    dry_run: bool,
    namesrv: str | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Keep topics in a lake.

    Archives what is new since the last run, every message once, with all columns, by day and topic.
    Without --checkpoint its position is kept in FOLDER.checkpoint. With --format iceberg, FOLDER is
    the name of a table.
    """
    from skylark.spark.jobs import archive
    from skylark.spark.jobs.frame import queue_spans

    options = archive.ArchiveOptions(
        topics=topics,
        output=output,
        namesrv=namesrv,
        format=lake_format,
        checkpoint=checkpoint,
        interval_ms=interval_ms,
        start=start,
        tags=tags,
        group=group,
        rows_per_batch=batch_rows,
    )
    queue_spans(options.source)  # a topic that is not there is told before Spark starts
    with running(context, "archive", master, conf) as job:
        if dry_run:
            spans = archive.plan(job.spark, options)
        else:
            summary = archive.run(job.spark, options, job.report, job.stop)
    if dry_run:
        show_spans(context, spans)
    else:
        show_summary(context, summary)

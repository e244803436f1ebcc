"""``skylark job mirror``: copies a topic to another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    SparkGiven,
    lake_format_option,
    plan_or_run,
    require_checkpoint,
    stream_options,
)

PLAN_COLUMNS = (
    "broker_name", "queue_id", "start", "end", "rows", "to_broker_name", "to_queue_id",
)  # fmt: skip


@click.command(
    "mirror",
    epilog="Example: skylark job mirror orders --to-namesrv 10.0.0.2:9876"
    " --checkpoint /data/ck/mirror",
)
@click.argument("topic")
@click.option(
    "--to-namesrv",
    required=True,
    metavar="HOST:PORT[;...]",
    help="Name servers of the target cluster.",
)
@click.option("--to-topic", help="Topic in the target cluster.  [default: the same name]")
@click.option(
    "--pairs",
    metavar="FOLDER",
    help="Table of source and target offsets.  [default: CHECKPOINT.pairs]",
)
@lake_format_option("--pairs-format", "pairs_format", "Format of the table of offsets;")
@click.option(
    "--cluster-name", "name", help="Name of the source cluster in MIRROR_FROM.  [default: its own]"
)
@click.option(
    "--to-cluster-name", "to_name", help="Name of the target cluster.  [default: its own]"
)
@stream_options("mirror", batch_rows=200_000)
@click.pass_obj
def command(context: CliContext, /, dry_run: bool, spark: SparkGiven, **given: Any) -> None:
    """Copy a topic to another cluster.

    Keeps body, tag, keys, properties and message id, and the order of each queue. The topic must
    exist in the target cluster. Copies have the property MIRROR_FROM, and messages that came from
    the target cluster are not sent back, so clusters that mirror each other need different names.
    """
    require_checkpoint(given)
    from skylark.spark.jobs import mirror_job as mirror
    from skylark.spark.pipelines.checkpoint_folders import local_path

    options = mirror.MirrorOptions(**given)
    folder = local_path(options.checkpoint, Path.cwd())
    if folder is not None and not (folder / "commits").exists():
        mirror.check_clusters(options)  # a missing topic is reported before Spark starts
    queues = plan_or_run(context, "mirror", spark, mirror, options, dry_run=dry_run)
    if queues is not None:
        context.output.rows(PLAN_COLUMNS, queues)
        context.output.info(
            f"{sum(queue.rows for queue in queues):,} rows; dry run: nothing was sent"
        )

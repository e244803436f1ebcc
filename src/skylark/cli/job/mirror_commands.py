"""``skylark job mirror``: copies a topic to another cluster."""

from __future__ import annotations

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    StreamGiven,
    running,
    show_summary,
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
@click.option(
    "--cluster-name", help="Name of the source cluster in MIRROR_FROM.  [default: its own]"
)
@click.option("--to-cluster-name", help="Name of the target cluster.  [default: its own]")
@stream_options("mirror", batch_rows=200_000)
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    to_namesrv: str,
    to_topic: str | None,
    pairs: str | None,
    cluster_name: str | None,
    to_cluster_name: str | None,
    stream: StreamGiven,
) -> None:
    """Copy a topic to another cluster.

    Keeps body, tag, keys, properties and message id, and the order of each queue. The topic must
    exist in the target cluster. Copies have the property MIRROR_FROM, and messages that came from
    the target cluster are not sent back, so clusters that mirror each other need different names.
    """
    checkpoint = stream.require_checkpoint()
    import msgspec

    from skylark.spark.jobs import mirror_job as mirror

    options = mirror.MirrorOptions(
        topic=topic,
        to_namesrv=to_namesrv,
        checkpoint=checkpoint,
        to_topic=to_topic,
        namesrv=stream.namesrv,
        pairs=pairs,
        name=cluster_name,
        to_name=to_cluster_name,
        interval_ms=stream.interval_ms,
        start=stream.start,
        tags=stream.tags,
        group=stream.group,
        rows_per_batch=stream.batch_rows or mirror.ROWS_PER_BATCH,
    )
    mirror.check_clusters(options)  # a missing topic is reported before Spark starts
    with running(context, "mirror", stream.master, stream.conf) as job:
        if stream.dry_run:
            queues = mirror.plan(job.spark, options)
        else:
            summary = mirror.run(job.spark, options, job.report, job.stop)
    if stream.dry_run:
        context.output.rows(PLAN_COLUMNS, map(msgspec.structs.asdict, queues))
        context.output.info(
            f"{sum(queue.rows for queue in queues):,} rows; dry run: nothing was sent"
        )
    else:
        show_summary(context, summary)

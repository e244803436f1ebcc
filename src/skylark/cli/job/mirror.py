"""``skylark job mirror``: a topic copied to another cluster."""

from __future__ import annotations

import click

from skylark.cli.context import CliContext
from skylark.cli.job.common import (
    checkpoint_option,
    dry_run_option,
    interval_option,
    job_options,
    running,
    show_summary,
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
    "--to-namesrv", required=True, metavar="HOST:PORT[;...]", help="The cluster that gets it."
)
@click.option("--to-topic", help="Its name there.  [default: the same]")
@click.option(
    "--pairs",
    metavar="FOLDER",
    help="Table of the offsets here and there.  [default: CHECKPOINT.pairs]",
)
@click.option("--cluster-name", help="The name of this cluster in MIRROR_FROM.  [default: its own]")
@click.option("--to-cluster-name", help="The name of the other one.  [default: its own]")
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
@click.option("--group", help="Consumer group that shows how far the mirror is.")
@click.option(
    "--batch-rows",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Rows of one batch at most.",
)
@checkpoint_option
@dry_run_option
@job_options
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    to_namesrv: str,
    to_topic: str | None,
    pairs: str | None,
    cluster_name: str | None,
    to_cluster_name: str | None,
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
    """Copy a topic to another cluster.

    Keeps body, tag, keys, properties and message id, and the order of each queue; the topic must
    exist there. Copies carry the property MIRROR_FROM, and what came from the other cluster is not
    sent back to it: clusters that mirror each other need different names.
    """
    if checkpoint is None:
        raise click.UsageError(
            "Give --checkpoint: without it the job would send everything again each time."
        )
    import msgspec

    from skylark.spark.jobs import mirror

    options = mirror.MirrorOptions(
        topic=topic,
        to_namesrv=to_namesrv,
        checkpoint=checkpoint,
        to_topic=to_topic,
        namesrv=namesrv,
        pairs=pairs,
        name=cluster_name,
        to_name=to_cluster_name,
        interval_ms=interval_ms,
        start=start,
        tags=tags,
        group=group,
        rows_per_batch=batch_rows,
    )
    mirror.look(options)  # a topic that is not there is told before Spark starts
    with running(context, "mirror", master, conf) as job:
        if dry_run:
            queues = mirror.plan(job.spark, options)
        else:
            summary = mirror.run(job.spark, options, job.report, job.stop)
    if dry_run:
        context.output.rows(PLAN_COLUMNS, map(msgspec.structs.asdict, queues))
        context.output.note(f"{sum(queue.rows for queue in queues):,} rows; nothing was sent")
    else:
        show_summary(context, summary)

"""``skylark job transform``: applies SQL to a topic and sends the result to another topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    StreamGiven,
    running,
    show_spans,
    show_summary,
    stream_options,
)

if TYPE_CHECKING:
    from skylark.spark.jobs.transform_job import Delivery, TransformPlan

_EXAMPLE = (
    "Example: skylark job transform orders paid --checkpoint /data/ck/paid --sql"
    " \"SELECT body, keys FROM input WHERE tags = 'PAID'\""
)


@click.command("transform", epilog=_EXAMPLE)
@click.argument("topic")
@click.argument("to_topic")
@click.option("--sql", metavar="STATEMENT", help="SQL query over the view input.")
@click.option(
    "--sql-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the SQL query.",
)
@click.option(
    "--delivery",
    type=click.Choice(["at-least-once", "exactly-once"]),
    default="at-least-once",
    show_default=True,
    help="Whether rows may be sent again after a crash.",
)
@click.option(
    "--to-namesrv",
    metavar="HOST:PORT[;...]",
    help="Name servers of TO_TOPIC.  [default: those of TOPIC]",
)
@stream_options(
    "job",
    batch_rows=None,
    batch_rows_help="Maximum rows per batch.  [default: 200000, exactly-once 20000]",
)
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    to_topic: str,
    sql: str | None,
    sql_file: Path | None,
    delivery: Delivery,
    to_namesrv: str | None,
    stream: StreamGiven,
) -> None:
    """Transform a topic into another by SQL.

    The view input has the messages of TOPIC, with the columns of the source (topic, tags, keys,
    body, properties, ...). Each selected row is sent to TO_TOPIC: body, and tags, keys, properties,
    shardingKey, ... if selected. The job continues from its checkpoint.
    """
    if (sql is None) == (sql_file is None):
        raise click.UsageError("Give either --sql or --sql-file.")
    checkpoint = stream.require_checkpoint()
    from skylark.spark.jobs import transform_job as transform

    options = transform.TransformOptions(
        topic=topic,
        to_topic=to_topic,
        sql=sql if sql_file is None else sql_file.read_text("utf-8"),  # type: ignore[arg-type]
        checkpoint=checkpoint,
        namesrv=stream.namesrv,
        to_namesrv=to_namesrv,
        delivery=delivery,
        interval_ms=stream.interval_ms,
        start=stream.start,
        tags=stream.tags,
        group=stream.group,
        rows_per_batch=stream.batch_rows,
    )
    transform.check_topics(options)  # a missing topic is reported before Spark starts
    with running(context, "transform", stream.master, stream.conf) as job:
        if stream.dry_run:
            plan = transform.plan(job.spark, options)
        else:
            summary = transform.run(job.spark, options, job.report, job.stop)
    if stream.dry_run:
        _show_plan(context, plan)
    else:
        show_summary(context, summary)


def _show_plan(context: CliContext, plan: TransformPlan) -> None:
    import msgspec

    if context.output.is_json:
        context.output.record(msgspec.to_builtins(plan))
        return
    columns = ("column", "type", "used")
    context.output.rows(columns, map(msgspec.structs.asdict, plan.columns))
    context.output.gap()
    show_spans(context, plan.queues)

"""``skylark job transform``: applies SQL to a topic and sends the result to another topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    SparkGiven,
    plan_or_run,
    require_checkpoint,
    show_spans,
    stream_options,
)

if TYPE_CHECKING:
    from skylark.spark.jobs.transform_job import TransformPlan

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
    batch_rows_help="Maximum number of messages that one micro-batch reads."
    "  [default: 200000, exactly-once 20000]",
)
@click.pass_obj
def command(
    context: CliContext,
    /,
    sql: str | None,
    sql_file: Path | None,
    dry_run: bool,
    spark: SparkGiven,
    **given: Any,
) -> None:
    """Transform a topic into another by SQL.

    The view input has the messages of TOPIC, with the columns of the source (topic, tags, keys,
    body, properties, ...). Each selected row is sent to TO_TOPIC: body, and tags, keys, properties,
    shardingKey, ... if selected. The job continues from its checkpoint.
    """
    if sql is None and sql_file is not None:
        sql = sql_file.read_text("utf-8")
    elif sql is None or sql_file is not None:
        raise click.UsageError("Give either --sql or --sql-file.")
    require_checkpoint(given)
    from skylark.spark.jobs import transform_job as transform

    options = transform.TransformOptions(sql=sql, **given)
    transform.check_topics(options)  # a missing topic is reported before Spark starts
    plan = plan_or_run(context, "transform", spark, transform, options, dry_run=dry_run)
    if plan is not None:
        _show_plan(context, plan)


def _show_plan(context: CliContext, plan: TransformPlan) -> None:
    import msgspec

    if context.output.is_json:
        context.output.record(msgspec.to_builtins(plan))
        return
    context.output.rows(("column", "type", "used"), plan.columns)
    context.output.gap()
    show_spans(context, plan.queues)

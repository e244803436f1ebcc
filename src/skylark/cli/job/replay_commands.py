"""``skylark job replay``: sends archived messages to topics again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import (
    SparkGiven,
    dry_run_option,
    format_option,
    job_options,
    plan_or_run,
)

if TYPE_CHECKING:
    from skylark.spark.jobs.replay_job import QueueReplay


PLAN_COLUMNS = (
    "topic", "broker_name", "queue_id", "rows", "first_offset", "last_offset", "body_size",
    "to_topic", "to_broker", "to_queue",
)  # fmt: skip


def _moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    from skylark.spark.option_table import moment_ms

    if value is None:
        return None
    try:
        return datetime.fromtimestamp(moment_ms(value) / 1000, tz=UTC)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    "replay", epilog="Example: skylark job replay /data/lake/orders --to orders-again --rate 500"
)
@click.argument("lake")
@click.option("--to", "to_topic", metavar="TOPIC", help="Topic to send to.")
@click.option("--to-original", is_flag=True, help="Send each message to its original topic.")
@format_option
@click.option(
    "--topic", "topics", multiple=True, help="Only archived messages of this topic; repeatable."
)
@click.option(
    "--since", metavar="TIME", callback=_moment, help="Only messages stored at this time or later."
)
@click.option(
    "--until", metavar="TIME", callback=_moment, help="Only messages stored before this time."
)
@click.option("--rate", type=float, metavar="N", help="Maximum messages per second, in total.")
@click.option(
    "--time-scale",
    type=float,
    metavar="X",
    help="Keep the original intervals: 1 original speed, 2 twice as fast.",
)
@click.option("--keep-ids", is_flag=True, help="Keep the unique message ids.")
@dry_run_option
@job_options
@click.pass_obj
def command(
    context: CliContext, /, to_original: bool, dry_run: bool, spark: SparkGiven, **given: Any
) -> None:
    """Send archived messages to a topic again.

    LAKE is a folder that `skylark job archive` has written. The messages of each queue keep their
    order. The property REPLAY_OF of each copy is the id of the original message.
    """
    from skylark.spark.jobs import replay_job as replay

    if (given["to_topic"] is None) != to_original:
        raise click.UsageError("Give the target: --to TOPIC or --to-original.")
    options = replay.ReplayOptions(**given)
    replay.check_target(options)
    queues = plan_or_run(context, "replay", spark, replay, options, dry_run=dry_run)
    if queues is not None:
        _show_plan(context, queues)


def _show_plan(context: CliContext, queues: list[QueueReplay]) -> None:
    context.output.rows(PLAN_COLUMNS, queues)
    rows = sum(queue.rows for queue in queues)
    context.output.info(f"{rows:,} messages would be sent; dry run: nothing was sent")

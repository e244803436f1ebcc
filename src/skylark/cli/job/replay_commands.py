"""``skylark job replay``: sends archived messages to topics again."""

from __future__ import annotations

from datetime import UTC, datetime
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
    from skylark.spark.jobs.replay_job import QueueReplay


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
    context: CliContext,
    lake: str,
    to_topic: str | None,
    to_original: bool,
    lake_format: LakeFormat,
    topics: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    rate: float | None,
    time_scale: float | None,
    keep_ids: bool,
    dry_run: bool,
    namesrv: str | None,
    master: str,
    conf: dict[str, str],
) -> None:
    """Send archived messages to a topic again.

    LAKE is a folder that `skylark job archive` has written. The messages of each queue keep their
    order. The property REPLAY_OF of each copy is the id of the original message.
    """
    from skylark.spark.jobs import replay_job as replay

    if (to_topic is None) != to_original:
        raise click.UsageError("Give the target: --to TOPIC or --to-original.")
    options = replay.ReplayOptions(
        lake=lake,
        to_topic=to_topic,
        namesrv=namesrv,
        format=lake_format,
        topics=topics,
        since=since,
        until=until,
        rate=rate,
        time_scale=time_scale,
        keep_ids=keep_ids,
    )
    replay.check_target(options)
    with running(context, "replay", master, conf) as job:
        if dry_run:
            queues = replay.plan(job.spark, options)
        else:
            summary = replay.run(job.spark, options, job.report, job.stop)
    if dry_run:
        _show_plan(context, queues)
    else:
        show_summary(context, summary)


def _show_plan(context: CliContext, queues: list[QueueReplay]) -> None:
    import msgspec

    columns = (
        "topic",
        "broker_name",
        "queue_id",
        "rows",
        "first_offset",
        "last_offset",
        "body_size",
        "to_topic",
        "to_broker",
        "to_queue",
    )
    context.output.rows(columns, map(msgspec.structs.asdict, queues))
    rows = sum(queue.rows for queue in queues)
    context.output.info(f"{rows:,} messages would be sent; dry run: nothing was sent")

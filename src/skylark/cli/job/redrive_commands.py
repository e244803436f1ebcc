"""``skylark job redrive``: sends dead letters to their consumer group again.

It does not need Spark; ``skylark dlq redrive`` can also select single messages by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import namesrv_option
from skylark.cli.exit_codes import ExitCode
from skylark.cli.job.job_options import dry_run_option, duration, show_summary

if TYPE_CHECKING:
    from skylark.admin.redrive import RedriveProgress
    from skylark.spark.jobs.redrive_job import RedriveOptions, RedriveSummary


@click.command(
    "redrive", epilog="Example: skylark job redrive billing --tag paid --younger-than 2h --dry-run"
)
@click.argument("group")
@click.option(
    "--to-original", is_flag=True, help="Send to the original topics, where all groups get them."
)
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable.")
@click.option("--key", "keys", multiple=True, help="Only messages with this key; repeatable.")
@click.option(
    "--older-than", metavar="DURATION", callback=duration, help="Only dead letters older than this."
)
@click.option(
    "--younger-than",
    metavar="DURATION",
    callback=duration,
    help="Only dead letters younger than this.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum messages per second."
)
@click.option("--limit", type=click.IntRange(min=1), help="End after this number of messages.")
@click.option(
    "--restart", is_flag=True, help="Start over with all dead letters, not only new ones."
)
@dry_run_option
@namesrv_option
@click.pass_context
def command(
    ctx: click.Context,
    group: str,
    to_original: bool,
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    older_than: int | None,
    younger_than: int | None,
    rate: float | None,
    limit: int | None,
    restart: bool,
    dry_run: bool,
    namesrv: str | None,
) -> None:
    """Send dead letters of a group again.

    Only GROUP gets them, as retries. A run continues where the last one ended, and sends no dead
    letter twice.
    """
    from skylark.spark.jobs.redrive_job import RedriveOptions

    context: CliContext = ctx.obj
    options = RedriveOptions(
        group=group,
        to_original=to_original,
        tags=frozenset(tags),
        keys=frozenset(keys),
        older_than_ms=older_than,
        younger_than_ms=younger_than,
        rate=rate,
        limit=limit,
        restart=restart,
        dry_run=dry_run,
    )
    summary = _run(context, namesrv, options)
    show_summary(context, summary)
    if not summary.is_well:
        ctx.exit(ExitCode.FAILED)


def _run(context: CliContext, namesrv: str | None, options: RedriveOptions) -> RedriveSummary:
    import asyncio

    from skylark.admin.admin_client import Admin
    from skylark.cli.command_helpers import client_options
    from skylark.spark.jobs import redrive_job as redrive

    async def run() -> RedriveSummary:
        async with Admin(client_options(namesrv)) as admin:
            total = (await admin.dlq.of(options.group)).count
            with context.output.progress(f"dead letters of {options.group}", total) as step:

                def on_progress(_: RedriveProgress) -> None:
                    step(1)

                return await redrive.run(admin, options, on_progress)

    return asyncio.run(run())

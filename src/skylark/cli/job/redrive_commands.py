"""``skylark job redrive``: sends dead letters to their consumer group again.

It does not need Spark; ``skylark dlq redrive`` can also select single messages by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import call_admin, namesrv_option
from skylark.cli.exit_codes import ExitCode
from skylark.cli.job.job_options import dry_run_option, duration, show_summary

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.spark.jobs.redrive_job import RedriveOptions, RedriveSummary


@click.command(
    "redrive", epilog="Example: skylark job redrive billing --tag paid --younger-than 2h --dry-run"
)
@click.argument("group")
@click.option(
    "--to-original", is_flag=True, help="Send to the original topics, where all groups get them."
)
@click.option(
    "--tag", "tags", multiple=True, help="Only messages with one of the given tags; repeatable."
)
@click.option(
    "--key", "keys", multiple=True, help="Only messages with one of the given keys; repeatable."
)
@click.option(
    "--older-than",
    "older_than_ms",
    metavar="DURATION",
    callback=duration,
    help="Only messages that became dead letters at least this long ago: 2h, 1d.",
)
@click.option(
    "--younger-than",
    "younger_than_ms",
    metavar="DURATION",
    callback=duration,
    help="Only messages that became dead letters less than this ago: 2h, 1d.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum messages per second."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Stop after sending this many messages; skipped and failed ones do not count.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Check all dead letters again, not only new ones, and send those that were not sent.",
)
@dry_run_option
@namesrv_option
@click.pass_context
def command(
    ctx: click.Context, /, tags: tuple[str, ...], keys: tuple[str, ...], **given: Any
) -> None:
    """Send dead letters of a group again, without Spark.

    Only GROUP gets them, as retries. A run continues where the last one ended, and sends no dead
    letter twice.
    """
    from skylark.spark.jobs.redrive_job import RedriveOptions

    context: CliContext = ctx.obj
    options = RedriveOptions(tags=frozenset(tags), keys=frozenset(keys), **given)
    summary = _run(context, options)
    show_summary(context, summary)
    if not summary.is_well:
        ctx.exit(ExitCode.FAILED)


def _run(context: CliContext, options: RedriveOptions) -> RedriveSummary:
    from skylark.spark.jobs import redrive_job as redrive

    async def run(admin: Admin) -> RedriveSummary:
        total = (await admin.dlq.of(options.group)).count
        with context.output.progress(f"dead letters of {options.group}", total) as step:
            return await redrive.run(admin, options, lambda _: step(1))

    return call_admin(run)

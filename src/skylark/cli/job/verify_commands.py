"""``skylark job verify``: compares an archive with its topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.exit_codes import ExitCode
from skylark.cli.job.job_options import SparkGiven, format_option, job_options, running

if TYPE_CHECKING:
    from skylark.spark.jobs.verify_job import VerifySummary


@click.command("verify", epilog="Example: skylark job verify orders --lake /data/lake/orders")
@click.argument("topic")
@click.option("--lake", required=True, metavar="FOLDER", help="The archive of the topic.")
@format_option
@click.option(
    "--range",
    "range_size",
    type=click.IntRange(min=1),
    default=100_000,
    help="Offsets per compared range.",
)
@click.option(
    "--archived-only",
    is_flag=True,
    help="Ignore messages after the last archived one of each queue.",
)
@job_options
@click.pass_obj
def command(context: CliContext, /, spark: SparkGiven, **given: Any) -> None:
    """Compare a topic with its archive.

    Compares counts and CRC sums of offset ranges, for all messages that the topic has now. Exit
    code 1 if they differ.
    """
    from skylark.spark.jobs import verify_job as verify
    from skylark.spark.jobs.queue_spans import queue_spans

    options = verify.VerifyOptions(**given)
    queue_spans(options.source)  # raises for missing topics before Spark starts
    with running(context, "verify", spark) as job:
        summary = verify.run(job.spark, options, job.report, job.stop)
    _show(context, summary)
    if not summary.agree:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _show(context: CliContext, summary: VerifySummary) -> None:
    """Print the summary and a table of differences, or one JSON object with both."""
    import msgspec

    record = msgspec.to_builtins(summary)
    if context.output.is_json:
        context.output.record(record)
        return
    differences = record.pop("differences")
    context.output.record(record)
    if differences:
        context.output.rows(list(differences[0]), differences)
    if len(differences) < summary.different:
        context.output.info(f"the first {len(differences)} of {summary.different} ranges")

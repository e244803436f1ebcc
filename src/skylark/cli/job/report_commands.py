"""``skylark job report``: analyses a topic; output on the terminal, as HTML, PNG or Parquet."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.job.job_options import SparkGiven, job_options, running

if TYPE_CHECKING:
    from skylark.cli.output import Output
    from skylark.spark.jobs.topic_report import TopicReport

_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
#: Time spans in a table; fits one screen.
_SPANS_SHOWN = 24


@click.command(
    "report", epilog="Example: skylark job report orders --group billing --html orders.html"
)
@click.argument("topic")
@click.option("--group", help="Also show the lag of this consumer group.")
@click.option("--html", type=_FILE, metavar="FILE", help="Also write an HTML page with charts.")
@click.option(
    "--parquet", metavar="FOLDER", help="Also append the figures to Parquet tables in this folder."
)
@click.option("--png", type=_FILE, metavar="FILE", help="Also write the charts as an image.")
@click.option(
    "--from",
    "start",
    default="earliest",
    metavar="POSITION",
    help="Start position: earliest, -2h, or offsets as JSON.",
)
@click.option("--tags", metavar="'A || B'", help="Only messages with these tags.")
@click.option(
    "--hot-keys",
    type=click.IntRange(1, 100),
    default=20,
    help="Number of most frequent keys to show.",
)
@job_options
@click.pass_obj
def command(
    context: CliContext,
    /,
    html: Path | None,
    parquet: str | None,
    png: Path | None,
    spark: SparkGiven,
    **given: Any,
) -> None:
    """Analyse a topic: rate, sizes, latency, keys.

    Shows rate, sizes, latency from born time to store time, frequent keys, the distribution over
    queues, and with --group its lag. Does not read bodies; counts of keys are approximate.
    """
    import msgspec

    from skylark.spark.jobs import report_job as report
    from skylark.spark.jobs.queue_spans import queue_spans
    from skylark.spark.jobs.report_charts import png_chart, require_charts
    from skylark.spark.jobs.report_page import html_page

    options = report.ReportOptions(**given)
    if html is not None or png is not None:
        require_charts()
    for file in filter(None, (html, png)):
        if not file.parent.is_dir():
            raise click.BadParameter(f"there is no folder {file.parent}")
    queue_spans(options.source)  # raises for missing topics before Spark starts
    with running(context, "report", spark) as job:
        found = report.run(job.spark, options, job.report)
        if parquet is not None:
            report.save(job.spark, found, parquet)
    if html is not None:
        html.write_text(html_page(found), "utf-8")
    if png is not None:
        png.write_bytes(png_chart(found))
    if context.output.is_json:
        means = {
            "rows_per_minute": found.rows_per_minute,
            "peak_per_minute": found.peak_per_minute,
            "queue_skew": found.queue_skew,
        }
        context.output.record(msgspec.to_builtins(found) | means)
    else:
        show(context.output, found)


def show(output: Output, report: TopicReport) -> None:
    """Print the report as tables."""
    from skylark.spark.jobs.topic_report import amount

    record: dict[str, object] = {
        "topic": report.topic,
        "messages": report.rows,
        "stored": amount(report.size),
        "first": _moment(report.first_ms),
        "last": _moment(report.last_ms),
        "mean per minute": round(report.rows_per_minute),
        "peak per minute": round(report.peak_per_minute),
        "queue skew": round(report.queue_skew, 2),
        "keys": report.keys.distinct,
        "sharding keys": report.sharding_keys.distinct,
    }
    if report.group is not None:
        record |= {
            f"lag of {report.group.group}": report.group.lag,
            "oldest unread": _moment(report.group.oldest_ms),
        }
    output.record(record)
    if not report.rows:
        return
    _show_percentiles(output, report)
    _show_spans(output, report)
    output.gap()
    columns: dict[str, Any] = {
        "broker": "broker",
        "queue_id": "queue_id",
        "messages": "rows",
        "size": lambda queue: amount(queue.size),
        "first_offset": "first_offset",
        "last_offset": "last_offset",
    }
    output.rows(columns if report.group is None else {**columns, "lag": "lag"}, report.queues)
    for heading, share in (("key", report.keys), ("sharding_key", report.sharding_keys)):
        if share.hottest:
            output.gap()
            output.rows({heading: "key", "messages": "rows"}, share.hottest)


def _show_percentiles(output: Output, report: TopicReport) -> None:
    from skylark.spark.jobs.topic_report import amount, duration

    sizes, latencies = report.sizes, report.latencies_ms
    if sizes is None or latencies is None:
        return
    output.gap()
    output.rows(
        ("percentile", "size", "latency"),
        (
            {
                "percentile": name,
                "size": amount(getattr(sizes, name)),
                "latency": duration(getattr(latencies, name)),
            }
            for name in ("least", "p50", "p90", "p95", "p99", "most")
        ),
    )


def _show_spans(output: Output, report: TopicReport) -> None:
    """Print the last time spans."""
    from skylark.spark.jobs.topic_report import duration

    shown = report.spans[-_SPANS_SHOWN:]
    unread = ("unread",) if report.group is not None else ()
    output.gap()
    output.rows(
        ("since", "messages", "per_minute", "latency_p50", "latency_p99", *unread),
        (
            {
                "since": _moment(span.start_ms),
                "messages": span.rows,
                "per_minute": round(report.per_minute(span.rows)),
                "latency_p50": None if span.latency_p50_ms is None
                else duration(span.latency_p50_ms),
                "latency_p99": None if span.latency_p99_ms is None
                else duration(span.latency_p99_ms),
                "unread": span.unread,
            }
            for span in shown
        ),
    )  # fmt: skip
    if len(shown) < len(report.spans):
        output.info(f"the last {len(shown)} of {len(report.spans)} spans; --html has all")


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms // 1000, tz=UTC)

"""``skylark pipeline``: runs the pipelines of a YAML file on Spark.

:mod:`skylark.spark.pipelines.pipeline_file` describes the file. ``status`` and ``reset`` read
checkpoints and query brokers, without Spark. ``check``, ``plan`` and ``run`` do the same first, so
that most mistakes are reported before a Spark session starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import combined, confirm
from skylark.cli.exit_codes import UnreachableError
from skylark.cli.job.job_options import bars, stopping
from skylark.cli.output import records

if TYPE_CHECKING:
    from skylark.spark.lag_listener import LagListener
    from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile
    from skylark.spark.pipelines.pipeline_plan import PipelinePlan
    from skylark.spark.pipelines.pipeline_runner import Session
    from skylark.spark.pipelines.pipeline_start import Start
    from skylark.spark.pipelines.pipeline_status import PipelineStatus

QUEUE_COLUMNS = ("topic", "broker", "queue", "committed", "end", "lag")
MOVE_COLUMNS = {
    "topic": "queue.topic",
    "broker": "queue.broker_name",
    "queue": "queue.queue_id",
    "old": "old",
    "new": "new",
    "end": "end",
}


@click.group("pipeline")
def command() -> None:
    """Check, plan, run, monitor and reset the Spark pipelines of a YAML file."""


#: All pipelines of a file, or some.
file_and_names = combined(
    click.argument("file", type=click.Path(path_type=Path)),
    click.argument("names", metavar="[NAME]...", nargs=-1),
)


# ---- check and plan ------------------------------------------------------------------------------


@command.command("check", epilog="Example: skylark pipeline check orders.yaml --executors")
@file_and_names
@click.option(
    "--executors", is_flag=True, help="Also test connections from executors to every broker."
)
@click.pass_obj
def check(context: CliContext, file: Path, names: tuple[str, ...], executors: bool) -> None:
    """Check a file, its topics and its queries; reads no data."""
    plans, problems = [], []
    with _planning(context, file, names) as (spark, document, starts):
        from skylark.spark.pipelines.pipeline_plan import make_plan

        plans = [make_plan(spark, document, pipeline, start) for pipeline, start in starts]
        if executors:
            problems = _check_executors(context, spark, [pipeline for pipeline, _ in starts])
    columns = ("pipeline", "reads", "queues", "transforms", "writes", "columns", "checkpoint")
    if not (executors and context.output.is_json):
        context.output.rows(columns, map(_plan_record, plans))
    if problems:
        raise UnreachableError(f"executors cannot reach {'; '.join(problems)}")
    context.output.info(f"{file.name}: no problems found")


def _check_executors(context: CliContext, spark: Session, pipelines: list[Pipeline]) -> list[str]:
    from skylark.spark.pipelines.pipeline_plan import broker_addresses, try_from_executors

    reached = try_from_executors(spark, broker_addresses(pipelines))
    context.output.rows(("host", "address", "tasks", "problem"), reached)
    context.output.gap()
    return [f"{each.address} from {each.host}: {each.problem}" for each in reached if each.problem]


@command.command("plan", epilog="Example: skylark pipeline plan orders.yaml paid-to-lake")
@file_and_names
@click.pass_obj
def plan(context: CliContext, file: Path, names: tuple[str, ...]) -> None:
    """Show what pipelines would do, and their start offsets."""
    with _planning(context, file, names) as (spark, document, starts):
        from skylark.spark.pipelines.pipeline_plan import make_plan

        plans = [make_plan(spark, document, pipeline, start) for pipeline, start in starts]
    if context.output.is_json:
        columns = (*_plan_record(plans[0]), "offsets", "query")
        context.output.rows(
            columns,
            (
                {**_plan_record(each), "offsets": _offsets(each), "query": each.query}
                for each in plans
            ),
        )
        return
    for number, each in enumerate(plans):
        if number:
            context.output.gap()
        context.output.record(_plan_record(each))
        context.output.gap()
        context.output.rows(("topic", "broker", "queue", "start", "end"), _offsets(each))
        context.output.gap()
        click.echo(each.query)


def _plan_record(each: PipelinePlan) -> dict[str, object]:
    start = each.start
    again = " (again)" if start.again else ""
    return {
        "pipeline": each.pipeline.name,
        "reads": each.reads,
        "queues": len(start.ends),
        "transforms": each.transforms,
        "writes": each.writes,
        "columns": list(each.columns),
        "trigger": str(each.pipeline.trigger),
        "checkpoint": start.location,
        "next_batch": None if start.batch is None else f"{start.batch}{again}",
    }


def _offsets(each: PipelinePlan) -> list[dict[str, object]]:
    start = each.start
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "start": start.positions.get(queue),
            "end": start.ends.get(queue),
        }
        for queue in sorted({*start.positions, *start.ends})
    ]


@contextmanager
def _planning(
    context: CliContext, file: Path, names: tuple[str, ...], *, strict: bool = True
) -> Iterator[tuple[Session, PipelineFile, list[tuple[Pipeline, Start]]]]:
    """Everything that needs no Spark is checked; then a session is there.

    Unreachable brokers are an error only if ``strict``.
    """
    document = _load(file)
    from skylark.spark.pipelines.pipeline_plan import check_outside
    from skylark.spark.pipelines.pipeline_runner import open_session

    with _connections():
        chosen = document.chosen(names)
        starts = [
            (pipeline, check_outside(document, pipeline, strict=strict)) for pipeline in chosen
        ]
        with open_session(document, quiet=not context.debug) as spark:
            yield spark, document, starts


# ---- run -----------------------------------------------------------------------------------------


@command.command("run", epilog="Example: skylark pipeline run orders.yaml --available-now")
@file_and_names
@click.option("--available-now", is_flag=True, help="Process the messages stored now, then end.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Serve lag, rows and restarts to Prometheus on this port; 0 chooses a free one.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="Address of the metrics; 0.0.0.0 serves them to other machines.",
)
@click.pass_obj
def run(
    context: CliContext,
    file: Path,
    names: tuple[str, ...],
    available_now: bool,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run the pipelines of a file, all or those named, in one Spark session.

    SIGTERM and Ctrl-C stop it after the current batches; the next run continues there. A second
    signal ends it at once.
    """
    with _planning(context, file, names, strict=False) as (spark, document, starts):
        from skylark.spark.pipelines.pipeline_runner import run_pipelines

        chosen = [pipeline for pipeline, _ in starts]
        with (
            _served_metrics(context, metrics_host, metrics_port) as listener,
            stopping() as stop,
            bars(context, [each.name for each in chosen]) as move,
        ):
            runs = run_pipelines(
                spark,
                document,
                chosen,
                watcher=move,
                listener=listener,
                stop=stop,
                available_now=available_now,
            )
    columns = ("pipeline", "state", "batches", "rows", "seconds", "lag", "restarts", "problem")
    context.output.rows(columns, runs)
    problems = [each.problem for each in runs if each.problem is not None]
    if problems:
        raise click.ClickException("; ".join(problems))


@contextmanager
def _served_metrics(
    context: CliContext, host: str, port: int | None
) -> Iterator[LagListener | None]:
    if port is None:
        yield None
        return
    from skylark.client.blocking.blocking_functions import serve_metrics
    from skylark.spark.lag_listener import process_listener

    with serve_metrics(port, host=host) as served:
        context.output.info(f"metrics: {served.url}")
        yield process_listener()


# ---- status and reset ----------------------------------------------------------------------------


@command.command("status", epilog="Example: skylark pipeline status orders.yaml")
@file_and_names
@click.pass_obj
def status(context: CliContext, file: Path, names: tuple[str, ...]) -> None:
    """Show the progress of pipelines from their checkpoints and the brokers, without Spark."""
    from skylark.spark.pipelines.pipeline_status import pipeline_statuses

    document = _load(file)
    with _connections():
        found = list(pipeline_statuses(document, names))
    columns = {
        "pipeline": "name",
        **{
            name: name
            for name in ("state", "batch", "unfinished", "lag", "restarts", "changed", "checkpoint")
        },
    }
    if context.output.is_json:
        context.output.rows(
            {**columns, "queues": _queues, "failure": "failure", "problem": "problem"}, found
        )
    else:
        context.output.rows(columns, found)
        context.output.gap()
        queues = [{"pipeline": each.name, **row} for each in found for row in _queues(each)]
        context.output.rows(("pipeline", *QUEUE_COLUMNS), queues)
        for each in found:
            if each.failure is not None:
                context.output.info(f"{each.name}: last failure: {each.failure}")
    if problems := sorted({each.problem for each in found if each.problem is not None}):
        raise UnreachableError("; ".join(problems))


def _queues(each: PipelineStatus) -> list[dict[str, object]]:
    return records(QUEUE_COLUMNS, each.queues)


@command.command("reset", epilog="Example: skylark pipeline reset orders.yaml alerts --to -2h")
@file_and_names
@click.option(
    "--to",
    "position",
    metavar="POSITION",
    required=True,
    help="earliest, latest, group, a duration ago (-2h), a time (2026-11-01T12:00:00Z), or offsets"
    ' ({"topic": {"broker-a": {"0": 23}}}).',
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def reset(
    context: CliContext,
    file: Path,
    names: tuple[str, ...],
    position: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Choose where pipelines start at their next run.

    Creates a new checkpoint folder with the next number, and keeps the old one. Rows that were
    already written stay. Stop the pipelines first.
    """
    from skylark.spark.pipelines.pipeline_reset import plan_reset, reset_position

    document = _load(file)
    wanted = reset_position(position)
    if not names and len(document.pipelines) > 1:
        raise click.UsageError(
            f"{file.name} has several pipelines: give the names of those to reset"
        )
    with _connections():
        plans = [plan_reset(document, each, wanted) for each in document.chosen(names)]
        moves = [
            {"pipeline": each.pipeline.name, **move}
            for each in plans
            for move in records(MOVE_COLUMNS, each.moves)
        ]
        columns = ("pipeline", *MOVE_COLUMNS)
        if dry_run or not context.output.is_json:
            context.output.rows(columns, moves)
        for each in plans:
            for warning in each.warnings:
                context.output.info(f"pipeline {each.pipeline.name}: {warning}")
        if dry_run:
            context.output.info("dry run: nothing was written")
            return
        confirm("Start there at the next run?", yes=yes)
        folders = {each.pipeline.name: each.write() for each in plans}
    if context.output.is_json:
        rows = [{**move, "checkpoint": folders[str(move["pipeline"])]} for move in moves]
        context.output.rows((*columns, "checkpoint"), rows)
    for name, folder in folders.items():
        context.output.info(f"pipeline {name} continues with {folder}")


# ---- common --------------------------------------------------------------------------------------


def _load(file: Path) -> PipelineFile:
    import os

    from skylark.spark.pipelines.pipeline_file import load

    return load(file, os.environ)


@contextmanager
def _connections() -> Iterator[None]:
    """Close the connections that were opened inside the block."""
    from skylark.spark.cluster_client import close_clusters
    from skylark.spark.sink.sink_client import close_clients

    try:
        yield
    finally:
        close_clients()
        close_clusters()

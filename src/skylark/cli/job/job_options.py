"""Shared parts of the ``skylark job`` commands: options, the Spark session, the progress bar.

::

    @click.command("archive", epilog="Example: ...")
    @click.argument("topic")
    @stream_options("archive", batch_rows=1_000_000)
    @click.pass_obj
    def command(context, spark, dry_run, **given) -> None:
        from skylark.spark.jobs import archive_job as archive

        options = archive.ArchiveOptions(**given)      # validates before Spark starts
        plan = plan_or_run(context, "archive", spark, archive, options, dry_run=dry_run)

The parameters of a command have the names of the fields of its job's options.

Ctrl-C and SIGTERM end the job after the current batch; a second signal ends it at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import given_namesrv, key_value, namesrv_option

if TYPE_CHECKING:
    import threading

    import msgspec

    from skylark.spark.jobs.job_runner import Job, JobProgress, Report
    from skylark.spark.jobs.queue_spans import QueueSpan

Command: TypeAlias = Callable[..., None]
O_contra = TypeVar("O_contra", contravariant=True)
P_co = TypeVar("P_co", covariant=True)
#: Updates the progress bar of a job by its name.
MoveBar: TypeAlias = "Callable[[str, JobProgress], None]"

DEFAULT_MASTER: Final = "local[*]"


class SparkGiven(NamedTuple):
    """The options about the Spark session."""

    master: str
    conf: dict[str, str]


def _settings(
    ctx: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> dict[str, str]:
    return dict(key_value(text, "--conf") for text in value)


def job_options(command: Command) -> Command:
    """Add ``-n``, ``--master`` and ``--conf``, as ``namesrv`` and ``spark``."""

    @functools.wraps(command)
    def collected(*args: Any, master: str, conf: dict[str, str], **given: Any) -> None:
        command(*args, namesrv=given_namesrv(), spark=SparkGiven(master, conf), **given)

    conf = click.option(
        "--conf",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_settings,
        help="Spark setting; repeatable.",
    )
    master = click.option(
        "--master",
        metavar="URL",
        default=DEFAULT_MASTER,
        help="Spark master URL, such as spark://host:7077.",
    )
    return namesrv_option(master(conf(collected)))


checkpoint_option = click.option(
    "--checkpoint", metavar="FOLDER", help="Spark checkpoint folder: the progress of the job."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only show what would be done; write nothing."
)


def lake_format_option(option: str, name: str, text: str) -> Callable[[Command], Command]:
    """An option for the format of a lake or a table."""
    return click.option(
        option,
        name,
        type=click.Choice(["parquet", "delta", "iceberg"]),
        default="parquet",
        help=f"{text} delta and iceberg need the extra of that name.",
    )


format_option = lake_format_option(
    "--format", "format", "Format of the lake; an iceberg one is [CATALOG.]NAMESPACE.TABLE;"
)


def duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse ``30s`` or ``5m`` to milliseconds; callback of an option."""
    from skylark.spark.option_table import duration_ms

    if value is None:
        return None
    try:
        return duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


interval_option = click.option(
    "--interval",
    "interval_ms",
    metavar="DURATION",
    callback=duration,
    help="Run until stopped, with a batch at this interval (30s, 5m).  [default: process the"
    " stored messages and end]",
)


tags_option = click.option("--tags", metavar="'A || B'", help="Only messages with these tags.")


def stream_options(
    name: str,
    *,
    batch_rows: int | None,
    batch_rows_help: str = "Maximum number of messages that one micro-batch reads.",
) -> Callable[[Command], Command]:
    """Add the options of jobs with a checkpoint, ``--dry-run`` and :func:`job_options`.

    ``batch_rows`` is the default; None: the job has its own, which ``batch_rows_help`` describes.
    """
    start = click.option(
        "--from",
        "start",
        default="earliest",
        metavar="POSITION",
        help="Start position of the first run: earliest, latest, -2h, or offsets as JSON.",
    )
    group = click.option("--group", help=f"Consumer group that shows the progress of the {name}.")
    rows = click.option(
        "--batch-rows",
        "rows_per_batch",
        type=click.IntRange(min=1),
        default=batch_rows,
        help=batch_rows_help,
    )

    def decorate(command: Command) -> Command:
        with_notes = checkpoint_option(dry_run_option(job_options(command)))
        return interval_option(start(tags_option(group(rows(with_notes)))))

    return decorate


def require_checkpoint(given: Mapping[str, Any]) -> None:
    """Check that a job that sends has a checkpoint."""
    if given["checkpoint"] is None:
        raise click.UsageError(
            "Give --checkpoint: without it each run would send everything again."
        )


class JobModule(Protocol[O_contra, P_co]):
    """A module of :mod:`skylark.spark.jobs` that can show what it would do."""

    def plan(self, spark: Any, options: O_contra, /) -> P_co: ...

    def run(
        self, spark: Any, options: O_contra, report: Report, stop: threading.Event, /
    ) -> msgspec.Struct: ...


def plan_or_run(
    context: CliContext,
    name: str,
    spark: SparkGiven,
    job: JobModule[O_contra, P_co],
    options: O_contra,
    *,
    dry_run: bool,
) -> P_co | None:
    """Run a job and print its summary; with ``dry_run``, return its plan instead."""
    with running(context, name, spark) as running_job:
        if dry_run:
            return job.plan(running_job.spark, options)
        summary = job.run(running_job.spark, options, running_job.report, running_job.stop)
    show_summary(context, summary)
    return None


@contextmanager
def running(context: CliContext, name: str, given: SparkGiven) -> Iterator[Job]:
    """Open a Spark session, a progress bar and a stop event; translate Spark's errors.

    A session that already runs is reused and not stopped.
    """
    from skylark.spark.error_translation import translate_errors
    from skylark.spark.jobs.job_runner import Job
    from skylark.spark.session import command_session, make_session

    with ExitStack() as stack:
        stack.enter_context(translate_errors())
        make = functools.partial(
            make_session, given.master, app_name=f"skylark job {name}", conf=given.conf
        )
        spark = stack.enter_context(command_session(make, quiet=not context.debug))
        stop = stack.enter_context(stopping())  # after Spark, which installs a SIGINT handler
        move = stack.enter_context(bars(context, [name]))
        yield Job(spark=spark, report=functools.partial(move, name), stop=stop)


def show_spans(context: CliContext, spans: Sequence[QueueSpan]) -> None:
    """Print what would be read of each queue, as a table or a JSON array."""
    context.output.rows(("topic", "broker_name", "queue_id", "start", "end", "rows"), spans)
    context.output.info(f"{sum(span.rows for span in spans):,} rows; dry run: nothing was written")


def show_summary(context: CliContext, summary: msgspec.Struct) -> None:
    """Print the figures of a run, one per line or as a JSON object."""
    import msgspec

    context.output.record(msgspec.structs.asdict(summary))


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; the second signal ends the process."""
    import signal
    import threading

    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def bars(context: CliContext, names: Sequence[str]) -> Iterator[MoveBar]:
    """Progress bars with rows, rate and lag, one per name; hidden if stderr is not a terminal."""
    import sys

    if context.output.is_json or not sys.stderr.isatty():
        yield lambda name, now: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {name: progress.add_task(name, total=None, figures="starting") for name in names}

        def move(name: str, now: JobProgress) -> None:
            total = None if now.lag is None else now.rows + now.lag
            progress.update(tasks[name], completed=now.rows, total=total, figures=figures(now))

        yield move


def figures(progress: JobProgress) -> str:
    """The figures next to a progress bar."""
    text = f"{progress.rows:,} rows  {progress.rows_per_second:,.0f} rows/s"
    return text if progress.lag is None else f"{text}  lag {progress.lag:,}"

"""What the commands of ``skylark job`` share: options, the session, the progress bar.

::

    @click.command("archive", epilog="Example: ...")
    @click.argument("topic")
    @job_options
    @checkpoint_option
    @dry_run_option
    @click.pass_obj
    def command(context, topic, namesrv, master, conf, checkpoint, dry_run) -> None:
        from skylark.spark.jobs import archive

        options = archive.ArchiveOptions(...)          # refuses what is wrong before Spark starts
        with running(context, "archive", master, conf) as job:
            summary = archive.run(job.spark, options, job.report, job.stop)
        show_summary(context, summary)

The interrupt key and SIGTERM end the batch in hand; the second time they end the job at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from skylark.cli.context import CliContext
from skylark.cli.name_servers import namesrv_option

if TYPE_CHECKING:
    import threading

    import msgspec

    from skylark.spark.jobs.frame import Job, JobProgress, QueueSpan, Report

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_MASTER: Final = "local[*]"


def _settings(
    ctx: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> dict[str, str]:
    settings = {}
    for text in value:
        name, equals, setting = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        settings[name.strip()] = setting
    return settings


def job_options(command: Decorated) -> Decorated:
    """``-n``, ``--master`` and ``--conf``, as ``namesrv``, ``master`` and ``conf``."""
    conf = click.option(
        "--conf",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_settings,
        help="A setting of Spark; may be repeated.",
    )
    master = click.option(
        "--master",
        metavar="URL",
        default=DEFAULT_MASTER,
        show_default=True,
        help="Where Spark runs.",
    )
    return namesrv_option(master(conf(command)))


checkpoint_option = click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Where the job notes how far it is.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only show what would be done; nothing is written."
)

format_option = click.option(
    "--format",
    "lake_format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Form of the lake; the others need their jars.",
)


def _duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
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
    callback=_duration,
    help="Go on until stopped, with a batch this often (30s, 5m).  [default: end with what is"
    " there]",
)


@contextmanager
def running(context: CliContext, name: str, master: str, conf: dict[str, str]) -> Iterator[Job]:
    """A session, a bar on the terminal, and a way to stop; errors of Spark become ours.

    A session that runs already is used, and left running.
    """
    from skylark.spark.jobs.frame import Job, explained, session

    with ExitStack() as stack:
        stack.enter_context(explained())
        spark = stack.enter_context(
            session(master, app_name=f"skylark job {name}", conf=conf, quiet=not context.debug)
        )
        stop = stack.enter_context(stopping())  # after Spark, which takes the interrupt key
        report = stack.enter_context(_bar(context, name))
        yield Job(spark=spark, report=report, stop=stop)


def show_spans(context: CliContext, spans: Sequence[QueueSpan]) -> None:
    """What would be read of each queue, as a table or as a JSON array."""
    import msgspec

    columns = ("topic", "broker_name", "queue_id", "start", "end", "rows")
    context.output.rows(columns, map(msgspec.structs.asdict, spans))
    context.output.note(f"{sum(span.rows for span in spans):,} rows; nothing was written")


def show_summary(context: CliContext, summary: msgspec.Struct) -> None:
    """The figures of a run, one per line or as one JSON object."""
    import msgspec

    context.output.record(msgspec.structs.asdict(summary))


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and the interrupt key set; the second time they end the process."""
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


class _Quiet:
    def progress(self, progress: JobProgress) -> None:
        """Nobody watches."""


@contextmanager
def _bar(context: CliContext, name: str) -> Iterator[Report]:
    """A bar with rows, rate and lag, if a person watches."""
    import sys

    if context.output.is_json or not sys.stderr.isatty():
        yield _Quiet()
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
        task = progress.add_task(name, total=None, figures="starting")

        class Bar:
            def progress(self, now: JobProgress) -> None:
                total = None if now.lag is None else now.rows + now.lag
                progress.update(task, completed=now.rows, total=total, figures=figures(now))

        yield Bar()


def figures(progress: JobProgress) -> str:
    """The figures beside a bar."""
    text = f"{progress.rows:,} rows  {progress.rows_per_second:,.0f} rows/s"
    return text if progress.lag is None else f"{text}  lag {progress.lag:,}"

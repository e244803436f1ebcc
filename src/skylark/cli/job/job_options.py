"""Shared parts of the ``skylark job`` commands: options, the Spark session, the progress bar.

::

    @click.command("archive", epilog="Example: ...")
    @click.argument("topic")
    @stream_options("archive", batch_rows=1_000_000)
    @click.pass_obj
    def command(context, topic, stream) -> None:
        from skylark.spark.jobs import archive

        options = archive.ArchiveOptions(...)          # validates before Spark starts
        with running(context, "archive", stream.master, stream.conf) as job:
            summary = archive.run(job.spark, options, job.report, job.stop)
        show_summary(context, summary)

Ctrl-C and SIGTERM end the job after the current batch; a second signal ends it at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import key_value, namesrv_option

if TYPE_CHECKING:
    import threading

    import msgspec

    from skylark.spark.jobs.job_runner import Job, JobProgress
    from skylark.spark.jobs.queue_spans import QueueSpan

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
#: Updates the progress bar of a job by its name.
MoveBar: TypeAlias = "Callable[[str, JobProgress], None]"

DEFAULT_MASTER: Final = "local[*]"


def _settings(
    ctx: click.Context, parameter: click.Parameter, value: Sequence[str]
) -> dict[str, str]:
    return dict(key_value(text, "--conf") for text in value)


def job_options(command: Decorated) -> Decorated:
    """Add ``-n``, ``--master`` and ``--conf``, as ``namesrv``, ``master`` and ``conf``."""
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
        show_default=True,
        help="Spark master URL.",
    )
    return namesrv_option(master(conf(command)))


checkpoint_option = click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Spark checkpoint folder: the progress of the job.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only show what would be done; write nothing."
)

format_option = click.option(
    "--format",
    "lake_format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="File format of the lake; delta and iceberg need their jars.",
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


@dataclass(frozen=True)
class StreamGiven:
    """The values of :func:`stream_options`."""

    interval_ms: int | None
    start: str
    tags: str | None
    group: str | None
    batch_rows: int | None
    checkpoint: str | None
    dry_run: bool
    namesrv: str | None
    master: str
    conf: dict[str, str]

    def require_checkpoint(self) -> str:
        """The checkpoint, which jobs that send must have."""
        if self.checkpoint is None:
            raise click.UsageError(
                "Give --checkpoint: without it each run would send everything again."
            )
        return self.checkpoint


def stream_options(
    name: str, *, batch_rows: int | None, batch_rows_help: str = "Maximum rows per batch."
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of jobs with a checkpoint, and :func:`job_options`, as ``stream``.

    ``batch_rows`` is the default; None: the job has its own, which ``batch_rows_help`` describes.
    """
    start = click.option(
        "--from",
        "start",
        default="earliest",
        show_default=True,
        metavar="POSITION",
        help="Start position of the first run: earliest, latest, -2h, or offsets as JSON.",
    )
    group = click.option("--group", help=f"Consumer group that shows the progress of the {name}.")
    rows = click.option(
        "--batch-rows",
        type=click.IntRange(min=1),
        default=batch_rows,
        show_default=batch_rows is not None,
        help=batch_rows_help,
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def collected(*args: Any, **given: Any) -> None:
            stream = {field.name: given.pop(field.name) for field in fields(StreamGiven)}
            command(*args, stream=StreamGiven(**stream), **given)

        with_notes = checkpoint_option(dry_run_option(job_options(collected)))
        return interval_option(start(tags_option(group(rows(with_notes)))))

    return decorate


@contextmanager
def running(context: CliContext, name: str, master: str, conf: dict[str, str]) -> Iterator[Job]:
    """Open a Spark session, a progress bar and a stop event; translate Spark's errors.

    A session that already runs is reused and not stopped.
    """
    from skylark.spark.error_translation import translate_errors
    from skylark.spark.jobs.job_runner import Job, session

    with ExitStack() as stack:
        stack.enter_context(translate_errors())
        spark = stack.enter_context(
            session(master, app_name=f"skylark job {name}", conf=conf, quiet=not context.debug)
        )
        stop = stack.enter_context(stopping())  # after Spark, which installs a SIGINT handler
        move = stack.enter_context(bars(context, [name]))
        yield Job(spark=spark, report=_Bar(name, move), stop=stop)


def show_spans(context: CliContext, spans: Sequence[QueueSpan]) -> None:
    """Print what would be read of each queue, as a table or a JSON array."""
    import msgspec

    columns = ("topic", "broker_name", "queue_id", "start", "end", "rows")
    context.output.rows(columns, map(msgspec.structs.asdict, spans))
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


class _Bar:
    """The progress bar of a job, in the form that jobs expect."""

    def __init__(self, name: str, move: MoveBar) -> None:
        self._name = name
        self._move = move

    def progress(self, progress: JobProgress) -> None:
        self._move(self._name, progress)


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

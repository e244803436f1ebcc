"""``skylark demo``: runs a sample application on all features in a minute, and audits its figures.

Completed steps go to stderr; the tables, or one JSON object, go to stdout. The exit code is 1 if
two figures that must be equal differ, or if the part of Spark could not run: the figures of the
others are checked all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.output import Output, records

if TYPE_CHECKING:
    from skylark.core.errors import SkylarkError
    from skylark.demo.demo_audit import Outcome

PIP_LINE: Final = "pip install 'skylark-mq[spark]'"
FLOW_COLUMNS: Final = (
    "topic", "kind", "sent", "stored", "consumed", "retried", "dead", "redriven", "archived",
)  # fmt: skip


@click.command("demo", epilog="Example: skylark demo --no-spark")
@click.option("--no-spark", is_flag=True, help="Skip the part that needs Spark and Java.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for all files; it is kept.  [default: a temporary one]",
)
@click.pass_obj
def command(context: CliContext, no_spark: bool, data: Path | None) -> None:
    """Run a sample shop that uses all features, and check its figures.

    Starts servers on free ports, sends normal, ordered, delayed and transactional messages,
    consumes them, redrives a dead letter, and aggregates and archives the messages with Spark.
    """
    import tempfile

    from skylark.demo.scenario import play

    context.configure_logging("critical")  # the demo causes failures on purpose
    no_java = None
    with_spark = not no_spark and _has_spark(context.output)
    if with_spark:
        no_java = _java_problem()
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylark-demo-")))
        folder = _empty_folder(data)
        step = partial(_step, context.output)
        outcome = play(
            folder, step, with_spark=with_spark and no_java is None, quiet=not context.debug
        )
    _show(context.output, outcome, outcome.spark_problem or no_java)


def _has_spark(output: Output) -> bool:
    """Whether Spark is installed; says so if it is not."""
    from importlib.util import find_spec

    if all(find_spec(name) is not None for name in ("pyspark", "pyarrow")):
        return True
    output.info(f"Spark is not installed: the demo skips its part. To run all of it: {PIP_LINE}")
    return False


def _java_problem() -> SkylarkError | None:
    """Why Spark has no Java here; None if it has one."""
    import os
    import sys

    from skylark.core.errors import ConfigError
    from skylark.spark.java import java_home

    try:
        java_home(os.environ, Path(sys.prefix, "java"))
    except ConfigError as error:
        return error
    return None


def _empty_folder(data: Path) -> Path:
    from skylark.core.errors import ConfigError

    folder = data.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{data} is not empty", hint="the demo needs an empty folder")
    return folder


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: stop the servers and remove the folder."""
    import signal
    import threading

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _step(output: Output, title: str) -> Iterator[Callable[[str], None]]:
    """Print a step when it is completed; on a terminal, also the current one."""
    from skylark.core.clock import SystemClock

    clock, results = SystemClock(), [""]
    began = clock.monotonic()
    with output.progress(title):
        yield results.append
    seconds = clock.monotonic() - began
    output.info(f"{seconds:5.1f} s  {title:<38} {results[-1]}".rstrip())


def _show(output: Output, outcome: Outcome, spark_problem: SkylarkError | None) -> None:
    checks = records(("check", "expected", "found", "ok"), outcome.checks)
    wrong = outcome.disagreements
    if output.is_json:
        record = {
            "ok": not wrong and spark_problem is None,
            "seconds": outcome.seconds,
            "topics": outcome.flows,
            "checks": checks,
        }
        if spark_problem is not None:
            record["spark_problem"] = spark_problem.message
        output.record(record)
    else:
        output.gap()
        output.rows(FLOW_COLUMNS, outcome.flows)
        output.gap()
        output.rows(tuple(checks[0]), checks)
        output.gap()
        output.info(f"{len(checks) - len(wrong)} of {len(checks)} checks, {outcome.seconds} s")
    if wrong:
        differences = "; ".join(f"{it.check}: {it.found} instead of {it.expected}" for it in wrong)
        raise click.ClickException(f"the figures do not agree: {differences}")
    if spark_problem is not None:
        raise click.ClickException(_spark_sentence(spark_problem))


def _spark_sentence(problem: SkylarkError) -> str:
    """What failed and what to do; the checks of the other parts stand above it."""
    hint = problem.hint or "skylark --debug demo shows the log of Spark"
    return (
        f"the part of Spark did not run: {problem.message} ({hint}, or skip it with --no-spark);"
        " all checks of the other parts agree"
    )

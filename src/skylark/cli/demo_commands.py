"""``skylark demo``: the whole system at work in a minute, with an audit at the end.

Steps are told on stderr as they end; the tables, or one JSON object, are on stdout. The exit code
is 1 if two numbers that have to be the same are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.output import Output

if TYPE_CHECKING:
    from skylark.demo.demo_audit import Outcome

PIP_LINE: Final = "pip install 'skylark-mq[spark]'"
FLOW_COLUMNS: Final = (
    "topic", "kind", "sent", "stored", "consumed", "retried", "dead", "redriven", "archived",
)  # fmt: skip


@click.command("demo", epilog="Example: skylark demo --no-spark")
@click.option("--no-spark", is_flag=True, help="Leave out the part that needs Spark and Java.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for all that is written; it stays.  [default: a temporary one]",
)
@click.pass_obj
def command(context: CliContext, no_spark: bool, data: Path | None) -> None:
    """Play a shop that uses everything, and check the numbers.

    Starts servers on free ports, sends normal, ordered, delayed and transactional messages,
    consumes them, lets one die and brings it back, and has Spark aggregate and archive them.
    """
    import tempfile

    from skylark.demo.scenario import play

    context.configure_logging("critical")  # what goes wrong on purpose is part of the play
    with_spark = not no_spark and _has_spark(context.output)
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylark-demo-")))
        folder = _empty_folder(data)
        outcome = play(
            folder, _Teller(context.output), with_spark=with_spark, quiet=not context.debug
        )
    _show(context.output, outcome)


def _has_spark(output: Output) -> bool:
    """Whether the part with Spark can be played; raises ConfigError if only Java is missing."""
    import os
    import sys
    from importlib.util import find_spec

    from skylark.core.errors import ConfigError
    from skylark.spark.java import java_home

    if any(find_spec(name) is None for name in ("pyspark", "pyarrow")):
        output.note(
            f"Spark is not installed: the demo goes on without it. For all of it: {PIP_LINE}"
        )
        return False
    try:
        java_home(os.environ, Path(sys.prefix, "java"))
    except ConfigError as error:
        hint = f"{error.hint}, or leave Spark out with --no-spark"
        raise ConfigError(error.message, hint=hint) from error
    return True


def _empty_folder(data: Path) -> Path:
    from skylark.core.errors import ConfigError

    folder = data.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{data} is not empty", hint="the demo needs a folder of its own")
    return folder


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the servers and removes the folder, as the interrupt key does."""
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


class _Teller:
    """Tells each step when it has ended; on a terminal, also what goes on."""

    def __init__(self, output: Output) -> None:
        self._output = output

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        from skylark.core.clock import SystemClock

        clock, said = SystemClock(), [""]
        began = clock.monotonic()
        with self._output.progress(title):
            yield said.append
        seconds = clock.monotonic() - began
        self._output.note(f"{seconds:5.1f} s  {title:<38} {said[-1]}".rstrip())


def _show(output: Output, outcome: Outcome) -> None:
    import msgspec

    checks = [{**msgspec.structs.asdict(check), "ok": check.ok} for check in outcome.checks]
    flows = list(map(msgspec.structs.asdict, outcome.flows))
    wrong = outcome.disagreements
    if output.is_json:
        record = {"ok": not wrong, "seconds": outcome.seconds, "topics": flows, "checks": checks}
        output.record(record)
    else:
        output.gap()
        output.rows(FLOW_COLUMNS, flows)
        output.gap()
        output.rows(("check", "expected", "found", "ok"), checks)
        output.gap()
        output.note(f"{len(checks) - len(wrong)} of {len(checks)} checks, {outcome.seconds} s")
    if wrong:
        told = "; ".join(f"{it.check}: {it.found} instead of {it.expected}" for it in wrong)
        raise click.ClickException(f"the numbers do not agree: {told}")

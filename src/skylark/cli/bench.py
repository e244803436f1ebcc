"""``skylark bench``: measures the throughput and the latency of a cluster.

Works with any RocketMQ, because it uses the ordinary clients (:mod:`skylark.load`). On a terminal
it shows rate, latency and errors while it runs. At the end it prints a table, or one JSON object
with the options and the results. Ctrl-C ends a run early and still prints the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    GROUP,
    client_options,
    combined,
    duration_s,
    given_namesrv,
    namesrv_option,
    topic_argument,
)
from skylark.cli.exit_codes import translated_errors

if TYPE_CHECKING:
    from rich.table import Table

    from skylark.admin.admin_client import Admin
    from skylark.load.benchmark import Bench
    from skylark.load.consume_load import Start
    from skylark.load.run_statistics import Tally
    from skylark.load.send_load import SendOptions

DEFAULT_DURATION: Final = "10s"
REFRESHES_PER_SECOND: Final = 4
#: Heading -> field and digits. JSON has all fields; this table fits a small terminal.
COLUMNS: Final = {
    "what": ("what", 0),
    "messages": ("messages", 0),
    "errors": ("errors", 0),
    "seconds": ("seconds", 1),
    "msg/s": ("per_second", 0),
    "MiB/s": ("mib_per_second", 1),
    "p50 ms": ("p50_ms", 2),
    "p99 ms": ("p99_ms", 2),
    "max ms": ("max_ms", 1),
}


@click.group("bench")
def command() -> None:
    """Measure the throughput and latency of sending and consuming."""


# ---- options -------------------------------------------------------------------------------------


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    return None if value is None else duration_s(value, "--duration")


#: They end a run.
length_options = combined(
    click.option("--count", type=click.IntRange(min=1), help="End after N messages.", metavar="N"),
    click.option(
        "--duration",
        callback=_seconds,
        metavar="TIME",
        help=f"End after this time (30s, 5m).  [default: {DEFAULT_DURATION}, unless --count]",
    ),
)
topic_options = combined(
    click.option("--create", is_flag=True, help="Create the topic if it does not exist."),
    click.option(
        "--queues",
        type=click.IntRange(1, 1024),
        default=8,
        help="Queues per broker of a created topic.",
    ),
    click.option(
        "--cleanup",
        is_flag=True,
        help="Delete the topic at the end if --create created it; needs --create.",
    ),
)
#: What is sent, and how.
load_options = combined(
    click.option(
        "--size", type=click.IntRange(16, 4 * 1024 * 1024), default=1024, help="Body size in bytes."
    ),
    click.option(
        "--in-flight", type=click.IntRange(1, 8192), default=64, help="Concurrent requests."
    ),
    click.option(
        "--batch",
        type=click.IntRange(1, 1000),
        default=1,
        help="Messages per request, sent as a batch.",
    ),
    click.option(
        "--batching/--no-batching",
        default=True,
        help="Let the producer combine concurrent messages into batches.",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="Maximum messages per second; latency then counts from the scheduled time.",
    ),
)
concurrency_option = click.option(
    "--concurrency", type=click.IntRange(1, 1000), default=20, help="Concurrent message handlers."
)


# ---- commands ------------------------------------------------------------------------------------


@command.command(
    "send", epilog="Example: skylark bench send orders --create --size 200 --duration 30s"
)
@topic_argument
@namesrv_option
@length_options
@load_options
@topic_options
@click.pass_obj
def send(context: CliContext, /, topic: str, **given: Any) -> None:
    """Send messages as fast as the cluster accepts them, or at a rate."""
    run = _Run(context, topic, given)

    async def work(bench: Bench, admin: Admin) -> None:
        await bench.send(run.send_options())

    run.perform(work)


@command.command(
    "consume", epilog="Example: skylark bench consume orders --from earliest --count 100000"
)
@topic_argument
@namesrv_option
@length_options
@concurrency_option
@click.option(
    "--group",
    type=GROUP,
    help="Consumer group to join.  [default: a new group, deleted at the end]",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    help="Start position.  [default: earliest; the committed offset with --group]",
)
@topic_options
@click.pass_obj
def consume(
    context: CliContext,
    /,
    topic: str,
    group: str | None,
    start: Start | None,
    concurrency: int,
    **given: Any,
) -> None:
    """Consume stored and new messages."""
    run = _Run(context, topic, {**given, "concurrency": concurrency})

    async def work(bench: Bench, admin: Admin) -> None:
        await bench.consume(
            admin, topic, count=given["count"], concurrency=concurrency, group=group, start=start
        )

    run.perform(work)


@command.command("e2e", epilog="Example: skylark bench e2e orders --create --cleanup --rate 1000")
@topic_argument
@namesrv_option
@length_options
@load_options
@concurrency_option
@topic_options
@click.pass_obj
def e2e(context: CliContext, /, topic: str, concurrency: int, **given: Any) -> None:
    """Send messages and consume them again; measures the end-to-end latency."""
    run = _Run(context, topic, {**given, "concurrency": concurrency})

    async def work(bench: Bench, admin: Admin) -> None:
        missing = await bench.end_to_end(admin, run.send_options(), concurrency=concurrency)
        if missing:
            run.problems.append(f"{missing:,} messages were sent and did not arrive")

    run.perform(work)


# ---- one run -------------------------------------------------------------------------------------


class _Run:
    """One benchmark run, from its options to the printed table."""

    def __init__(self, context: CliContext, topic: str, given: dict[str, Any]) -> None:
        if given["count"] is None and given["duration"] is None:
            given["duration"] = duration_s(DEFAULT_DURATION, "--duration")
        if given["cleanup"] and not given["create"]:
            raise click.UsageError(
                "--cleanup deletes the topic that --create created: add --create"
            )
        self.problems: list[str] = []
        self._context = context
        self._topic = topic
        self._given = given

    def send_options(self) -> SendOptions:
        from skylark.load.send_load import SendOptions

        names = ("size", "count", "in_flight", "batch", "batching", "rate")
        return SendOptions(topic=self._topic, **{name: self._given[name] for name in names})

    def perform(self, work: Callable[[Bench, Admin], Awaitable[None]]) -> None:
        from skylark.load.benchmark import quick_runner

        self._context.configure_logging("error")  # failures are counted and reported at the end
        with translated_errors(self._topic), quick_runner() as runner:
            tallies = runner.run(self._perform(work))
        self._show(tallies)

    async def _perform(self, work: Callable[[Bench, Admin], Awaitable[None]]) -> list[Tally]:
        from skylark.admin.admin_client import Admin
        from skylark.client.core.shutdown_signals import call_on_signal
        from skylark.core.clock import LoopClock
        from skylark.load.benchmark import Bench, bench_topic

        given, clock, client = self._given, LoopClock(), client_options(given_namesrv())
        create = given["queues"] if given["create"] else None
        bench = Bench(client, clock, given["duration"])
        async with (
            Admin(client) as admin,
            bench_topic(admin, self._topic, clock, create=create, cleanup=given["cleanup"]),
        ):
            with call_on_signal(bench.ending.set), _live(self._context, bench.tallies):
                await work(bench, admin)
        return bench.tallies

    def _show(self, tallies: list[Tally]) -> None:
        import msgspec

        from skylark.cli.exit_codes import error_message

        rows = [msgspec.structs.asdict(tally.figures()) for tally in tallies]
        output = self._context.output
        if output.is_json:
            names = ("create", "queues", "cleanup")
            asked = {key: value for key, value in self._given.items() if key not in names}
            output.record({"topic": self._topic, **asked, "results": rows})
        else:
            output.rows(tuple(COLUMNS), map(_shown, rows))
        for tally in tallies:
            if tally.first_error is not None:
                total = tally.errors + tally.messages
                why = error_message(tally.first_error)
                self.problems.append(f"{tally.errors:,} of {total:,} messages failed: {why}")
        if self.problems:
            raise click.ClickException("; ".join(self.problems))


def _shown(row: dict[str, Any]) -> dict[str, object]:
    """The columns of the table, rounded."""
    shown: dict[str, object] = {}
    for heading, (name, digits) in COLUMNS.items():
        value = row[name]
        shown[heading] = round(value, digits or None) if isinstance(value, float) else value
    return shown


@contextmanager
def _live(context: CliContext, tallies: list[Tally]) -> Iterator[None]:
    """Show a live table on stderr if it is a terminal."""
    import sys

    if context.output.is_json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    with Live(
        get_renderable=lambda: live_table(tallies),
        console=Console(stderr=True),
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
    ):
        yield


def live_table(tallies: list[Tally]) -> Table:
    """The table that is shown during a run."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "MESSAGES", "PER SECOND", "P50 MS", "P99 MS", "ERRORS", "SECONDS"):
        table.add_column(heading, justify="right" if heading else "left", min_width=8)
    for tally in list(tallies):
        latency = tally.latencies.percentile_ms
        p50, p99 = latency(50), latency(99)
        rate = tally.rate_now()
        table.add_row(
            tally.what,
            f"{tally.messages:,}",
            "-" if rate is None else f"{rate:,.0f}",
            "-" if p50 is None else f"{p50:,.2f}",
            "-" if p99 is None else f"{p99:,.2f}",
            f"{tally.errors:,}",
            f"{tally.seconds:,.0f}",
        )
    return table

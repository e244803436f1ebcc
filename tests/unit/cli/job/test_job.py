"""``skylark job``: the list of jobs, options, signals and the bar, without Spark."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from skylark.cli.cli_context import CliContext
from skylark.cli.job import JOBS, command
from skylark.cli.job import job_options as common
from skylark.cli.main import cli
from skylark.cli.output import Output
from skylark.spark.jobs.job_runner import JobProgress


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["job", *arguments])
    return result.exit_code, result.output


def test_the_group_lists_its_jobs_without_importing_them() -> None:
    program = (
        "import sys; from skylark.cli.main import cli\n"
        "try: cli(['job', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('pyspark', 'skylark.cli.job.'))])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert shown.endswith("\n[]\n")
    for name, line in JOBS.items():
        assert name in shown
        assert line.help in shown


@pytest.mark.parametrize("name", sorted(JOBS))
def test_each_job_has_its_line_help_and_an_example(name: str) -> None:
    found = command.get_command(click.Context(command), name)
    assert found is not None
    assert found.name == name
    assert found.get_short_help_str(limit=200) == JOBS[name].help
    code, text = run(name, "--help")
    assert code == 0
    assert f"Example: skylark job {name}" in text


def test_unknown_jobs_are_refused() -> None:
    code, text = run("nosuch")
    assert code == 2
    assert "No such command 'nosuch'" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("archive", "T"), "Missing option '--to'"),
        (("archive", "--to", "x"), "Missing argument 'TOPIC...'"),
        (("archive", "T", "--to", "x", "--conf", "spark.x"), "'spark.x' is not KEY=VALUE"),
        (("archive", "T", "--to", "x", "--interval", "soon"), "it must be a duration"),
        (("archive", "T", "--to", "x", "--batch-rows", "0"), "x>=1"),
        (("archive", "T", "--to", "x", "--format", "iceberg"), "needs a checkpoint"),
        (("replay", "x"), "Give the target"),
        (("replay", "x", "--to", "T", "--to-original"), "Give the target"),
        (("replay", "x", "--to", "T", "--since", "noon"), "it must be milliseconds"),
        (("replay", "x", "--to", "T", "--rate", "-1"), "must be more than 0"),
        (("compact", "T"), "give one of the two"),
        (("compact", "T", "--to-topic", "T"), "into itself"),
        (("verify", "T"), "Missing option '--lake'"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(arguments: tuple[str, ...], problem: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert problem in text


EXAMPLE = Path(__file__).parents[4] / "examples" / "pipeline" / "orders.yaml"


@pytest.mark.parametrize(
    "arguments",
    [
        ("job", "archive", "T", "--to", "x"),
        ("job", "verify", "T", "--lake", "x"),
        ("pipeline", "check", str(EXAMPLE)),
    ],
)
def test_without_spark_the_error_says_what_to_install(arguments: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"  # as if it were not installed
        "from skylark.cli.main import cli\n"
        f"cli({list(arguments)})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        ended.stderr
        == "Error: the Python package pyspark is not installed: pip install 'skylark-mq[spark]'\n"
    )
    assert (ended.returncode, ended.stdout) == (2, "")


def test_a_topic_that_cannot_be_one_is_wrong_usage() -> None:
    code, text = run("replay", "x", "--to", "a b")
    assert (code, text.startswith("Error: "), text.count("\n")) == (2, True, 1)


def test_settings_of_spark_are_pairs() -> None:
    @click.command()
    @common.job_options
    def show(namesrv: str | None, spark: common.SparkGiven) -> None:
        click.echo(f"{namesrv} {spark.master} {spark.conf}")

    shown = CliRunner().invoke(show, ["--conf", "a.b=c=d", "--conf", " e = ", "--master", "local"])
    assert shown.output == "None local {'a.b': 'c=d', 'e': ' '}\n"


def test_the_first_signal_asks_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with common.stopping() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_rows_rate_and_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    progress = JobProgress(rows=1_234_567, rows_per_second=9_876.5, lag=89)
    for output_format, seen in (("table", True), ("json", False)):
        output = Output(output_format, io.StringIO(), terminal)  # type: ignore[arg-type]
        with common.bars(CliContext(output, None, "text", debug=False), ["archive"]) as move:
            move("archive", progress)
        assert ("1,234,567 rows  9,876 rows/s  lag 89" in terminal.getvalue()) is seen
        terminal.truncate(0)


def test_lag_is_shown_where_it_is_known() -> None:
    assert common.figures(JobProgress(rows=5)) == "5 rows  0 rows/s"

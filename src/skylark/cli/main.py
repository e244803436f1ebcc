"""The command ``skylark``: global options, lazily loaded subcommands, errors as exit codes.

``skylark --help`` must be fast, so the module of a subcommand is imported only when the command is
called or its own help is shown. Therefore ``COMMANDS`` holds the short help as well; a test
compares it with the help of the command. ``skylark job`` works the same way.

A command gets the :class:`~skylark.cli.cli_context.CliContext` by ``@click.pass_obj``, imports what
it needs inside its function, and raises errors. This module turns errors into messages and exit
codes (:mod:`skylark.cli.exit_codes`), and a missing package into a hint what to install.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, NoReturn

import click

from skylark.cli.cli_context import LEVELS, CliContext, LogFormat
from skylark.cli.command_helpers import given_namesrv, namesrv_option
from skylark.cli.exit_codes import ExitCode, error_message, exit_code
from skylark.cli.output import FORMATS, Output, OutputFormat


class LazyCommand(NamedTuple):
    """A subcommand: where to import it from, and its short help."""

    target: str  # "skylark.cli.module:attribute"
    help: str


COMMANDS: dict[str, LazyCommand] = {
    "apply": LazyCommand(
        "skylark.cli.apply_commands:command",
        "Create, change and delete topics and groups as a YAML file describes them.",
    ),
    "bench": LazyCommand(
        "skylark.cli.bench:command", "Measure the throughput and latency of sending and consuming."
    ),
    "broker": LazyCommand("skylark.cli.broker_commands:command", "Run a broker."),
    "cluster": LazyCommand(
        "skylark.cli.cluster_commands:command", "Show brokers, their replicas and settings."
    ),
    "consume": LazyCommand("skylark.cli.consume:command", "Print the messages of a topic."),
    "demo": LazyCommand(
        "skylark.cli.demo_commands:command",
        "Run a sample shop that uses all features, and check its figures.",
    ),
    "dlq": LazyCommand("skylark.cli.dlq_commands:command", "List, show and redrive dead letters."),
    "doctor": LazyCommand(
        "skylark.cli.doctor:command", "Check this machine and the cluster, and print what to fix."
    ),
    "down": LazyCommand("skylark.cli.down:command", "Stop a cluster that skylark up started."),
    "group": LazyCommand(
        "skylark.cli.group_commands:command",
        "List, describe, change, reset and delete consumer groups.",
    ),
    "job": LazyCommand("skylark.cli.job:command", "Run data jobs; most use Spark."),
    "message": LazyCommand(
        "skylark.cli.message_commands:command",
        "Find messages, and explain why they were or were not consumed.",
    ),
    "namesrv": LazyCommand("skylark.cli.namesrv_commands:command", "Run a name server."),
    "ping": LazyCommand(
        "skylark.cli.ping:command", "Check whether name servers and brokers respond."
    ),
    "pipeline": LazyCommand(
        "skylark.cli.pipeline_commands:command",
        "Check, plan, run, monitor and reset the Spark pipelines of a YAML file.",
    ),
    "produce": LazyCommand("skylark.cli.produce:command", "Send messages to a topic."),
    "store": LazyCommand(
        "skylark.cli.store_commands:command", "Check, dump or repair the files of a message store."
    ),
    "topic": LazyCommand(
        "skylark.cli.topic_commands:command", "Create, list, describe, change and delete topics."
    ),
    "txn": LazyCommand(
        "skylark.cli.txn_commands:command",
        "List, abandon, settle and repair batches of exactly-once Spark sinks.",
    ),
    "up": LazyCommand("skylark.cli.up:command", "Run a name server and brokers on this machine."),
}


#: Optional module -> the extra of this package that installs it.
EXTRAS: Final = {
    "deltalake": "delta",
    "google": "connect",
    "grpc": "connect",
    "grpc_status": "connect",
    "matplotlib": "report",
    "pandas": "spark",
    "pyarrow": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
}


def _choose_output(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    """Check ``-n`` of the words before, and take ``--output`` instead of an earlier one."""
    if ctx.resilient_parsing:  # completion: no command runs
        return
    is_group = isinstance(ctx.command, click.Group)
    if not is_group and given_namesrv(ctx) and not _takes(ctx.command, "-n"):
        ctx.fail(f"{ctx.command_path} uses no name server: leave out -n")
    if value is not None:
        ctx.obj.output = Output("json" if value == "json" else "table", sys.stdout, sys.stderr)


def _add_global_options(command: click.Command) -> None:
    """Let ``--output`` and ``-n`` follow the words of a command too.

    The help of a group does not list them, that of a command lists those that it uses.
    """
    if _takes(command, "--output"):
        return
    is_group = isinstance(command, click.Group)
    output = click.option(
        "--output",
        "output_format",  # commands may have a parameter named output
        type=click.Choice(FORMATS),
        expose_value=False,
        callback=_choose_output,
        hidden=is_group,
        help="Format of the printed result.  [default: table]",
    )
    output(command)
    if isinstance(command, click.Group):
        namesrv_option(command)
        command.params[-1].hidden = True  # type: ignore[attr-defined]
        for below in command.commands.values():
            _add_global_options(below)


def _takes(command: click.Command, option: str) -> bool:
    return any(option in parameter.opts for parameter in command.params)


class LazyGroup(click.Group):
    """A group whose subcommands are listed in a table and imported when they are called."""

    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._table})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if cmd_name in self._table:
            module, _, attribute = self._table[cmd_name].target.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)
        if command is not None:
            _add_global_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest similar names from the table too, which click does not know."""
        known = self.list_commands(ctx)
        close = get_close_matches(args[0], known, 1)
        if close and args[0] not in known and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing them."""
        lines = {
            **{name: row.help for name, row in self._table.items()},
            **{
                name: command.get_short_help_str()
                for name, command in self.commands.items()
                if not command.hidden
            },
        }
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(sorted(lines.items()))


class RootGroup(LazyGroup):
    """The root command; turns every error into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click handles these, BrokenPipeError for `skylark ... | head`
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)
        except ModuleNotFoundError as error:
            _report(ctx, _with_install_hint(error))
        except Exception as error:  # noqa: BLE001 - the boundary: every error becomes an exit code
            _report(ctx, error)


def _with_install_hint(error: ModuleNotFoundError) -> Exception:
    """An error that says what to install, if the missing module belongs to an extra."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    from skylark.core.errors import ConfigError

    found = ConfigError(
        f"the Python package {package} is not installed",
        hint=f"pip install 'skylark-mq[{EXTRAS[package]}]'",
    )
    return found.with_traceback(error.__traceback__)


def _report(ctx: click.Context, error: Exception) -> NoReturn:
    if ctx.params["debug"]:
        traceback.print_exception(error)
    click.echo(f"Error: {error_message(error)}", err=True)
    ctx.exit(exit_code(error))


@click.group(
    cls=RootGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--output",
    "output_format",
    type=click.Choice(FORMATS),
    default="table",
    help="Format of the printed result. You can give --output and -n before or after the command.",
)
@namesrv_option
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="Minimum level of log lines.  [default: info for servers, otherwise warning]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Format of log lines on stderr.",
)
@click.option("--debug", is_flag=True, help="Print a traceback with an error.")
@click.version_option(
    package_name="skylark-mq", prog_name="skylark", message="%(prog)s %(version)s"
)
@click.pass_context
def cli(
    ctx: click.Context,
    output_format: OutputFormat,
    log_level: str | None,
    log_format: LogFormat,
    debug: bool,
) -> None:
    """Skylark: Apache RocketMQ in Python.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 server unreachable, 4 not found.
    """
    context = CliContext(
        output=Output(output_format, sys.stdout, sys.stderr),
        log_level=log_level,
        log_format=log_format,
        debug=debug,
    )
    context.configure_logging("warning")
    ctx.obj = context


#: How to install the completion script in each shell.
COMPLETION_PLACES: Final = {
    "bash": 'eval "$(skylark completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(skylark completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "skylark completion fish > ~/.config/fish/completions/skylark.fish",
}


@cli.command("completion", epilog='Example: eval "$(skylark completion bash)"')
@click.argument("shell", type=click.Choice(sorted(COMPLETION_PLACES)))
@click.pass_obj
def completion(context: CliContext, shell: str) -> None:
    """Print the shell completion script."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    script = found(cli, {}, "skylark", "_SKYLARK_COMPLETE")  # click's name for this program
    # Not source(): for bash it runs bash to find its version, and prints to stdout.
    click.echo(script.source_template % script.source_vars())
    if sys.stdout.isatty():
        context.output.info(f"To install it: {COMPLETION_PLACES[shell]}")


def main() -> NoReturn:
    """Entry point of the console script and of ``python -m skylark``."""
    cli(prog_name="skylark")
    raise AssertionError("click always exits")

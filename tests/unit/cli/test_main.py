"""The command line frame: exit codes, errors as sentences, lazy commands, logging."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from skylark.cli import main as main_module
from skylark.cli.cli_context import CliContext
from skylark.cli.main import COMMANDS, EXTRAS, LazyCommand, cli
from skylark.core import errors

# The program that a subprocess runs: `skylark` with one more, hidden command that raises.
PROGRAM = """
import sys, click
from skylark.cli.main import cli, main
from skylark.core import errors

@cli.command("break", hidden=True)
def command():
    raise {error}

main()
"""


def run_skylark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skylark", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def run_broken(error: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(error=error), *arguments, "break"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def invoke() -> Iterator[Callable[..., Result]]:
    """Run ``skylark ... probe`` in this process, where ``probe`` is the given function."""

    def run(probe: Callable[[CliContext], None], *arguments: str) -> Result:
        command = click.command("probe", hidden=True)(click.pass_obj(probe))
        cli.add_command(command)
        return CliRunner().invoke(cli, [*arguments, "probe"], prog_name="skylark")

    yield run
    cli.commands.pop("probe", None)


# ---- exit codes, seen from outside -----------------------------------------------------------


def test_help_and_version_succeed() -> None:
    shown = run_skylark("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("Usage: skylark [OPTIONS] COMMAND")
    version = run_skylark("--version")
    assert version.returncode == 0
    assert version.stdout.startswith("skylark 0.")


@pytest.mark.parametrize("arguments", [["nosuch"], ["--nosuch"], ["--output", "xml", "x"], []])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    run = run_skylark(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert "Usage: skylark" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prodcue"], "No such command 'prodcue'. Did you mean 'produce'?"),
        (["job", "archiv"], "No such command 'archiv'. Did you mean 'archive'?"),
        (["nosuch"], "No such command 'nosuch'."),
    ],
)
def test_a_slip_of_the_finger_is_guessed(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, arguments, prog_name="skylark")
    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: {message}\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("errors.SkylarkError('it failed', hint='try again')", 1, "it failed: try again"),
        ("errors.ConfigError('bad key x')", 2, "bad key x"),
        ("errors.ConnectError('no one at h:1')", 3, "no one at h:1"),
        ("errors.TopicNotExistError('no topic T')", 4, "no topic T"),
        ("PermissionError(13, 'denied', 'f')", 1, "[Errno 13] denied: 'f'"),
    ],
)
def test_errors_become_exit_codes(error: str, code: int, message: str) -> None:
    run = run_broken(error)
    assert run.returncode == code
    assert run.stdout == ""
    assert run.stderr == f"Error: {message}\n"


def test_debug_shows_the_traceback() -> None:
    run = run_broken("errors.ConnectError('no one')", "--debug")
    assert run.returncode == 3
    assert run.stderr.startswith("Traceback (most recent call last)")
    assert "in command" in run.stderr
    assert run.stderr.endswith("\nError: no one\n")


def test_the_interrupt_key_is_130() -> None:
    run = run_broken("KeyboardInterrupt")
    assert run.returncode == 130
    assert "Traceback" not in run.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    program = PROGRAM.format(error="click.echo('x' * 200_000)")
    with subprocess.Popen(
        [sys.executable, "-c", program, "break"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1


# ---- the mapping, in this process ------------------------------------------------------------

CODES: dict[type[Exception], int] = {
    errors.SkylarkError: 1,
    errors.ConfigError: 2,
    errors.ProtocolError: 1,
    errors.LocalProtocolError: 1,
    errors.RemoteProtocolError: 1,
    errors.HeaderFieldError: 1,
    errors.TransportError: 3,
    errors.ConnectError: 3,
    errors.ConnectionClosedError: 3,
    errors.RequestTimeoutError: 3,
    errors.TooManyRequestsError: 1,
    errors.BrokerError: 1,
    errors.SystemBusyError: 1,
    errors.RequestNotSupportedError: 1,
    errors.MessageIllegalError: 1,
    errors.ServiceNotAvailableError: 1,
    errors.NoPermissionError: 1,
    errors.TopicNotExistError: 4,
    errors.QueryNotFoundError: 4,
    errors.SubscriptionGroupNotExistError: 4,
    errors.InvalidParameterError: 2,
    errors.ConsumerNotOnlineError: 1,
    errors.GoAwayError: 1,
    errors.ClientError: 1,
    errors.ClientStateError: 1,
    errors.InvalidMessageError: 1,
    errors.SendFailedError: 1,
    errors.NoNameServerError: 3,
    errors.NoRouteError: 4,
    errors.RequestReplyTimeoutError: 3,
    errors.SendTimeoutError: 3,
    errors.CannotReplyError: 1,
    errors.StoreError: 1,
    errors.CorruptLogError: 1,
}


def make_error(kind: type[Exception]) -> Exception:
    if issubclass(kind, errors.CorruptLogError):
        return kind("what\nhappened", file="log", offset=7)
    return kind("what\nhappened")


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda value: str(value))
def test_every_error_class(invoke: Callable[..., Result], kind: type[Exception], code: int) -> None:
    def probe(context: CliContext) -> None:
        raise make_error(kind)

    result = invoke(probe)
    assert result.exit_code == code
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1  # one sentence, whatever the message held


def test_the_list_above_is_complete() -> None:
    def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
        yield kind
        for below in kind.__subclasses__():
            yield from subclasses(below)

    ours = {kind for kind in subclasses(errors.SkylarkError) if kind.__module__ == errors.__name__}
    assert ours == set(CODES)


def test_a_bug_is_called_one(invoke: Callable[..., Result]) -> None:
    def probe(context: CliContext) -> None:
        raise KeyError("x")

    result = invoke(probe)
    assert result.exit_code == 1
    assert result.output == (
        "Error: internal error, please report it: KeyError: 'x' (see --debug)\n"
    )


@pytest.mark.parametrize(
    ("module", "code", "text"),
    [
        (
            "matplotlib.pyplot",
            2,
            "the Python package matplotlib is not installed: pip install 'skylark-mq[report]'",
        ),
        ("nosuch", 1, "internal error, please report it: ModuleNotFoundError: no (see --debug)"),
    ],
)
def test_a_missing_module_is_named_with_what_brings_it(
    invoke: Callable[..., Result], module: str, code: int, text: str
) -> None:
    def probe(context: CliContext) -> None:
        raise ModuleNotFoundError("no", name=module)

    result = invoke(probe)
    assert (result.exit_code, result.output) == (code, f"Error: {text}\n")


def test_every_extra_exists() -> None:
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert set(EXTRAS.values()) <= settings["project"]["optional-dependencies"].keys()


# ---- lazy commands ---------------------------------------------------------------------------


def test_help_lists_commands_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "later", LazyCommand("skylark.cli.absent:command", "Do it."))
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert ["later", "Do", "it."] in [line.split() for line in result.output.splitlines()]


def test_a_command_is_imported_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "tests.unit.cli.test_main"
    sys.modules.setdefault(module, sys.modules[__name__])
    monkeypatch.setitem(COMMANDS, "later", LazyCommand(f"{module}:lazy_command", "Do it."))
    result = CliRunner().invoke(cli, ["later"])
    assert (result.exit_code, result.output) == (0, "done\n")


@click.command()
def lazy_command() -> None:
    click.echo("done")


def test_a_hidden_command_is_not_listed(invoke: Callable[..., Result]) -> None:
    assert invoke(lambda context: None).exit_code == 0
    assert "probe" not in CliRunner().invoke(cli, ["--help"]).output


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_table_of_commands_is_true(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name].help
    assert not command.hidden


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from skylark.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('skylark.')))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    roots, ours = (set(line.split()) for line in run.stdout.splitlines())
    assert not roots & {"asyncio", "msgspec", "numpy", "pyarrow", "pyspark", "rich", "yaml"}
    assert ours == {
        "skylark.cli",
        "skylark.cli.cli_context",
        "skylark.cli.command_helpers",
        "skylark.cli.exit_codes",
        "skylark.cli.main",
        "skylark.cli.output",
    }


# ---- global options --------------------------------------------------------------------------


def test_options_reach_the_command(invoke: Callable[..., Result]) -> None:
    def probe(context: CliContext) -> None:
        context.output.rows(["name"], [{"name": "T"}])

    assert invoke(probe).output == "NAME\nT\n"
    assert json.loads(invoke(probe, "--output", "json").output) == [{"name": "T"}]


@pytest.mark.parametrize(
    ("arguments", "default", "shown"),
    [
        ([], "warning", ["w"]),
        ([], "info", ["i", "w"]),
        (["--log-level", "error"], "info", []),
        (["--log-level", "debug"], "warning", ["d", "i", "w"]),
    ],
)
def test_log_level(
    invoke: Callable[..., Result], arguments: list[str], default: str, shown: list[str]
) -> None:
    def probe(context: CliContext) -> None:
        context.configure_logging(default)
        log = logging.getLogger("skylark.probe")
        log.debug("d")
        log.info("i")
        log.warning("w")

    result = invoke(probe, *arguments)
    assert result.stdout == ""
    assert [line.split()[-1] for line in result.stderr.splitlines()] == shown


def test_log_lines_as_json(invoke: Callable[..., Result]) -> None:
    def probe(context: CliContext) -> None:
        try:
            int("inner")
        except ValueError:
            logging.getLogger("skylark.probe").exception("two\nlines %s", 7)

    result = invoke(probe, "--log-format", "json")
    (line,) = result.stderr.splitlines()
    entry = json.loads(line)
    assert entry["level"] == "error"
    assert entry["logger"] == "skylark.probe"
    assert entry["message"] == "two\nlines 7"
    assert entry["exception"].endswith("with base 10: 'inner'")
    assert entry["time"].endswith("+00:00")


def test_log_lines_as_text(invoke: Callable[..., Result]) -> None:
    def probe(context: CliContext) -> None:
        logging.getLogger("skylark.probe").warning("hello %s", "you")

    assert invoke(probe).stderr.endswith("WARNING skylark.probe  hello you\n")


def test_the_console_script_is_main() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="skylark")
    assert script.load() is main_module.main

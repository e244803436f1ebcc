"""``skylark store``: look into the files of a message store, Skylark's or Apache's.

Nothing is changed. A store in use may be read, too; a line on stderr says that it is.

=====  ===========================================================
code   meaning
=====  ===========================================================
0      nothing found but notes; all was dumped
1      findings; or the dump had to pass over bytes of the log
2      the directory is no store, or a setting is wrong
4      there is no such directory
=====  ===========================================================
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from skylark.store.config import StoreConfig
    from skylark.store.inspection.log_walk import Hole
    from skylark.store.inspection.store_check import CheckReport
    from skylark.store.inspection.store_directory import FileSizes, Survey

_COLUMNS = ("severity", "kind", "file", "offset", "text")
_SETTINGS_HELP = """\
File sizes are guessed from the files. Where that fails, name the broker's settings: with -c its
properties file, or single ones with --set, for example --set maxHashSlotNum=5000000.
"""


class _NotFoundError(click.ClickException):
    exit_code = ExitCode.NOT_FOUND


class _NotAStoreError(click.ClickException):
    exit_code = ExitCode.USAGE


@click.group("store")
def command() -> None:
    """Check or dump the files of a message store."""


def _store_options(function: Any) -> Any:
    """What all subcommands take: the directory and the settings of its broker."""
    for decorate in (
        click.option(
            "--set",
            "assignments",
            metavar="KEY=VALUE",
            multiple=True,
            help="A setting of the broker by its Java name; may be repeated.",
        ),
        click.option(
            "-c",
            "--configFile",
            "config_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The broker's properties file.",
        ),
        click.argument("directory", metavar="DIR", type=click.Path(path_type=Path)),
    ):
        function = decorate(function)
    return function


# ---- check ---------------------------------------------------------------------------------------


@command.command("check", epilog=_SETTINGS_HELP)
@_store_options
@click.pass_obj
def check(
    context: CliContext, directory: Path, config_file: Path | None, assignments: tuple[str, ...]
) -> None:
    """Check every record, queue entry and index entry of a store.

    DIR is what storePathRootDir names. Nothing is changed or locked, and a store in use may be
    checked. Exit code 0: nothing but notes was found; 1: findings.

    \b
    Examples:
      skylark store check /var/lib/rocketmq/store
      skylark store check /backup/store -c broker.conf
      skylark --output json store check store > report.json
    """
    from skylark.store.inspection.store_check import check_store

    config, sizes = _settings(directory, config_file, assignments)
    with (
        _failing_well(directory),
        context.output.progress(f"checking {directory}", total=1000) as advance,
    ):
        shown = 0

        def progress(done: int, total: int) -> None:
            nonlocal shown
            permille = 1000 * done // max(1, total)
            advance(permille - shown)
            shown = permille

        report = check_store(
            directory,
            sizes,
            log_path=_log_path(directory, config),
            delays_ms=config.delay_levels_ms,
            progress=progress,
        )
    _show(context, report)
    if not report.is_clean:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _show(context: CliContext, report: CheckReport) -> None:
    findings = [
        {name: _plain(getattr(finding, name), report.root) for name in _COLUMNS}
        for finding in report.findings
    ]
    summary: dict[str, object] = {
        "store": report.root,
        "state": report.state.value,
        "log": f"{report.log_start} to {report.log_end}",
        "log_files": report.log_files,
        "records": report.records,
        "queues": report.queues,
        "queue_entries": report.queue_entries,
        "index_files": report.index_files,
        "index_entries": report.index_entries,
        "errors": report.errors,
        "warnings": report.warnings,
        "notes": report.notes,
    }
    if context.output.is_json:
        context.output.record({**summary, "findings": findings, "left_out": report.left_out})
        return
    context.output.record(summary)
    if findings:
        click.echo()
        context.output.rows(_COLUMNS, findings)
    for kind, count in report.left_out.items():
        context.output.note(f"and {count} more of the kind {kind}")


def _plain(value: object, root: Path) -> object:
    """Files relative to the store, severities by their word."""
    import enum

    if isinstance(value, Path):
        return value.relative_to(root) if value.is_relative_to(root) else value
    return value.value if isinstance(value, enum.Enum) else value


# ---- dump ----------------------------------------------------------------------------------------


@command.command("dump", epilog=_SETTINGS_HELP)
@_store_options
@click.option(
    "--what",
    type=click.Choice(["records", "queues", "index"]),
    default="records",
    show_default=True,
    help="The messages of the log, the entries of the queues, or those of the index.",
)
@click.option("--topic", metavar="TOPIC", help="Only this topic; not for the index.")
@click.option("--queue", "queue_id", type=int, help="Only the queue with this number.")
@click.option(
    "--from", "first", type=click.IntRange(min=0), default=0, help="Only from this queue offset on."
)
@click.option(
    "--until", "end", type=click.IntRange(min=0), help="Only up to this queue offset, without it."
)
@click.option(
    "--body",
    "body_form",
    type=click.Choice(["base64", "text", "none"]),
    default="base64",
    show_default=True,
    help="Form of the bodies; compressed ones are inflated.",
)
@click.pass_obj
def dump(
    context: CliContext,
    directory: Path,
    config_file: Path | None,
    assignments: tuple[str, ...],
    what: str,
    topic: str | None,
    queue_id: int | None,
    first: int,
    end: int | None,
    body_form: str,
) -> None:
    """Print what a store holds, one JSON object per line.

    DIR is what storePathRootDir names. Records come in the order of the log and do not need the
    queues. Exit code 1: bytes of the log are no records and were passed over.

    \b
    Examples:
      skylark store dump store --topic Orders --body text
      skylark store dump store --topic Orders --queue 0 --from 100 --until 200
      skylark store dump store --what queues | head
    """
    from msgspec import json

    from skylark.store.files import OsFileSystem
    from skylark.store.inspection.store_directory import State, survey
    from skylark.store.inspection.store_dump import (
        BodyForm,
        Selection,
        dump_index,
        dump_queues,
        dump_records,
    )

    if what == "index" and (topic is not None or queue_id is not None or first or end is not None):
        raise click.UsageError("the index knows hashes of keys, and neither topics nor queues")
    config, sizes = _settings(directory, config_file, assignments)
    files = OsFileSystem()
    holes: list[Hole] = []
    with _failing_well(directory):
        surveyed = survey(files, directory, sizes, log_path=_log_path(directory, config))
        if surveyed.state is State.IN_USE:
            click.echo(f"{directory} is in use: the newest items may be missing", err=True)
        selection = Selection(topic=topic, queue_id=queue_id, first=first, end=end)
        if what == "records":
            form = BodyForm(body_form)
            items = dump_records(files, surveyed, selection, body_form=form, on_hole=holes.append)
        elif what == "queues":
            items = dump_queues(files, surveyed, selection)
        else:
            _require_shape(surveyed)
            items = dump_index(files, surveyed)
        encoder = json.Encoder()
        output = sys.stdout.buffer
        for item in items:
            output.write(encoder.encode(item) + b"\n")
        output.flush()
    _tell_holes(holes)


def _require_shape(surveyed: Survey) -> None:
    if surveyed.index_files and surveyed.index_shape is None:
        raise click.UsageError(
            "nothing tells how many slots the index files have: give them with "
            "--set maxHashSlotNum=N --set maxIndexNum=M"
        )


def _tell_holes(holes: Sequence[Hole]) -> None:
    for hole in holes:
        fault = "" if hole.fault is None else hole.fault.value
        click.echo(f"no record at {hole.log_offset}: {fault}", err=True)
    if holes:
        raise click.exceptions.Exit(ExitCode.FAILED)


# ---- both ----------------------------------------------------------------------------------------


def _settings(
    directory: Path, config_file: Path | None, assignments: Sequence[str]
) -> tuple[StoreConfig, FileSizes]:
    """The broker's settings, and those of them that are file sizes and were really given."""
    from skylark.core.config import load, parse_properties, unknown_keys
    from skylark.store.config import StoreConfig
    from skylark.store.inspection.store_directory import FileSizes

    given = {} if config_file is None else parse_properties(config_file.read_bytes())
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise click.BadParameter(f"{assignment!r} is not KEY=VALUE", param_hint="--set")
        if unknown := unknown_keys(StoreConfig, [key]):
            close = f", but {unknown[key]}" if unknown[key] else ""
            raise click.BadParameter(f"there is no setting {key}{close}", param_hint="--set")
        given[key] = value
    known = {key: value for key, value in given.items() if not unknown_keys(StoreConfig, [key])}
    known["storePathRootDir"] = str(directory)
    config = load(StoreConfig, known, variables={"user.home": str(Path.home())})
    sizes = FileSizes(
        log=_given(known, "mappedFileSizeCommitLog", config.mapped_file_size_commit_log),
        queue=_given(known, "mappedFileSizeConsumeQueue", config.consume_queue_file_size),
        batch_queue=_given(
            known, "mapperFileSizeBatchConsumeQueue", config.mapper_file_size_batch_consume_queue
        ),
        index_slots=_given(known, "maxHashSlotNum", config.max_hash_slot_num),
        index_entries=_given(known, "maxIndexNum", config.max_index_num),
    )
    return config, sizes


def _log_path(directory: Path, config: StoreConfig) -> Path | None:
    """Where the log is if not in DIR; a copy of a store has it there, whatever the settings say."""
    return None if (directory / "commitlog").is_dir() else config.store_path_commit_log


def _given(settings: dict[str, str], key: str, value: int) -> int | None:
    return value if key in settings else None


@contextmanager
def _failing_well(directory: Path) -> Iterator[None]:
    """Turn the two mistakes that a user can make with DIR into their exit codes."""
    from skylark.store.errors import StoreFileError, StoreFileMissingError
    from skylark.store.inspection.store_directory import NotAStoreError

    try:
        yield
    except StoreFileMissingError as error:
        if error.path != directory:
            raise
        raise _NotFoundError(f"there is no directory {directory}") from error
    except NotAStoreError as error:
        # The folder of `skylark up` has a store for each broker.
        below = sorted(str(log.parent) for log in directory.glob("*/commitlog"))
        if below:
            raise _NotAStoreError(f"{directory} is no store, but has {', '.join(below)}") from error
        raise _NotAStoreError(str(error)) from error
    except StoreFileError as error:
        if error.path == directory and directory.is_file():
            raise _NotAStoreError(f"{directory} is a file, not a store directory") from error
        raise

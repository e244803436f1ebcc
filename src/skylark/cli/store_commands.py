"""``skylark store``: checks, dumps and repairs the files of a message store, Skylark's or Apache's.

``check`` and ``dump`` change nothing. They can read a store in use; ``dump`` then prints a note on
stderr. ``rebuild-config`` writes the tables of a stopped broker after it has shown what it writes.

=====  ===========================================================
code   meaning
=====  ===========================================================
0      no findings except notes; everything was dumped; the tables lack nothing or are written
1      findings; the dump skipped bytes of the log that are not records; not confirmed
2      the directory is not a store, or a setting is wrong
4      the directory does not exist
=====  ===========================================================
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import combined, confirm, key_value, yes_option
from skylark.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from skylark.store.config import StoreConfig
    from skylark.store.inspection.log_walk import Hole
    from skylark.store.inspection.store_check import CheckReport
    from skylark.store.inspection.store_directory import FileSizes, Survey

_COLUMNS = ("severity", "kind", "file", "offset", "text")
_SETTINGS_HELP = """\
File sizes are derived from the files. Where that fails, give the broker's settings: its properties
file with -c, or single ones with --set, for example --set maxHashSlotNum=5000000.
"""


@click.group("store")
def command() -> None:
    """Check, dump or repair the files of a message store."""


#: The arguments of all subcommands: the directory and the settings of its broker.
_store_options = combined(
    click.argument("directory", metavar="DIR", type=click.Path(path_type=Path)),
    click.option(
        "-c",
        "--configFile",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Properties file of the broker, for what the files in DIR do not show.",
    ),
    click.option(
        "--set",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="Setting of the broker by its Java name; repeatable.",
    ),
)


# ---- check ---------------------------------------------------------------------------------------


@command.command("check", epilog=_SETTINGS_HELP)
@_store_options
@click.pass_obj
def check(
    context: CliContext, directory: Path, config_file: Path | None, assignments: tuple[str, ...]
) -> None:
    """Check every record, queue entry and index entry of a store.

    DIR is the folder that storePathRootDir names. The command changes and locks nothing; it can
    check a store in use. Exit code 0: no findings except notes; 1: findings.

    \b
    Examples:
      skylark store check /var/lib/rocketmq/store
      skylark store check /backup/store -c broker.conf
      skylark --output json store check store > report.json
    """
    from skylark.store.inspection.store_check import check_store

    config, sizes = _settings(directory, config_file, assignments)
    with (
        _directory_errors(directory),
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
        context.output.info(f"and {count} more findings of kind {kind}")


def _plain(value: object, root: Path) -> object:
    """A finding with its file relative to the store, and its severity as a word."""
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
    help="Messages of the log, entries of the consume queues, or entries of the index.",
)
@click.option("--topic", metavar="TOPIC", help="Only this topic; not with --what index.")
@click.option(
    "--queue",
    "queue_id",
    type=int,
    help="Only queues with this id, of --topic or of all topics; not with --what index.",
)
@click.option(
    "--from",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=False,
    help="First queue offset.",
)
@click.option("--until", "end", type=click.IntRange(min=0), help="Queue offset to stop before.")
@click.option(
    "--body",
    "body_form",
    type=click.Choice(["base64", "text", "none"]),
    default="base64",
    help="Format of bodies, which are decompressed; for --what records only.",
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
    """Print the content of a store, one JSON object per line.

    DIR is the folder that storePathRootDir names. Records are read from the log, in its order,
    without the consume queues. Exit code 1: it skipped bytes of the log that are not records.

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
        raise click.UsageError(
            "the index has hashes of keys, but no topics or queues: leave out these options"
        )
    config, sizes = _settings(directory, config_file, assignments)
    files = OsFileSystem()
    holes: list[Hole] = []
    with _directory_errors(directory):
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
    _report_holes(holes)


def _require_shape(surveyed: Survey) -> None:
    if surveyed.index_files and surveyed.index_shape is None:
        raise click.UsageError(
            "cannot derive the number of slots of the index files: give "
            "--set maxHashSlotNum=N --set maxIndexNum=M"
        )


def _report_holes(holes: Sequence[Hole]) -> None:
    for hole in holes:
        fault = "" if hole.fault is None else hole.fault.value
        click.echo(f"no record at {hole.log_offset}: {fault}", err=True)
    if holes:
        raise click.exceptions.Exit(ExitCode.FAILED)


# ---- rebuild-config ------------------------------------------------------------------------------


@command.command("rebuild-config")
@_store_options
@yes_option
@click.pass_obj
def rebuild_config(
    context: CliContext,
    directory: Path,
    config_file: Path | None,
    assignments: tuple[str, ...],
    yes: bool,
) -> None:
    """Recreate lost topics and groups from the queue folders of a store.

    For a broker that does not start because config/topics.json is lost. DIR is the folder that
    storePathRootDir names; its broker must be stopped. Shows the topics and groups that the tables
    in DIR/config lack, asks for confirmation, and adds them. What the tables have stays.

    A topic gets as many queues as have a folder, and can be read and written. Its other attributes
    and the offsets of groups cannot be rebuilt: groups begin at their start position.

    \b
    Examples:
      skylark store rebuild-config /var/lib/rocketmq/store
      skylark store rebuild-config store --yes
    """
    from skylark.broker.topics.config_rebuild import plan_rebuild, write_rebuild
    from skylark.core.clock import SystemClock
    from skylark.store.files import OsFileSystem
    from skylark.store.inspection.store_directory import State, survey

    config, sizes = _settings(directory, config_file, assignments)
    files = OsFileSystem()
    with _directory_errors(directory):
        surveyed = survey(files, directory, sizes, log_path=_log_path(directory, config))
    if surveyed.state is State.IN_USE:
        raise click.UsageError(f"a broker uses {directory}: stop it first")
    plan = plan_rebuild(files, surveyed)
    rows: list[dict[str, object]] = [
        {
            "kind": "topic",
            "name": topic.topic_name,
            "queues": topic.read_queue_nums,
            "queue_type": topic.attributes.get("queue.type", "SimpleCQ"),
        }
        for topic in plan.topics
    ]
    rows += [{"kind": "group", "name": group.group_name} for group in plan.groups]
    if not rows:
        context.output.info(f"the tables of {directory} lack no topic and no group")
        return
    context.output.rows(("kind", "name", "queues", "queue_type"), rows)
    confirm(f"Write these to {directory / 'config'}?", yes=yes)
    write_rebuild(files, directory, plan, SystemClock().now_ms())
    context.output.info(f"wrote {len(plan.topics)} topics and {len(plan.groups)} groups")


# ---- shared --------------------------------------------------------------------------------------


def _settings(
    directory: Path, config_file: Path | None, assignments: Sequence[str]
) -> tuple[StoreConfig, FileSizes]:
    """The broker's settings, and the file sizes among them that were given explicitly."""
    from skylark.core.config import load, parse_properties, unknown_keys
    from skylark.store.config import StoreConfig
    from skylark.store.inspection.store_directory import FileSizes

    given = {} if config_file is None else parse_properties(config_file.read_bytes())
    for assignment in assignments:
        key, value = key_value(assignment, "--set")
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
    """The log folder if it is not in DIR; a copy of a store has it in DIR, despite the settings."""
    return None if (directory / "commitlog").is_dir() else config.store_path_commit_log


def _given(settings: dict[str, str], key: str, value: int) -> int | None:
    return value if key in settings else None


@contextmanager
def _directory_errors(directory: Path) -> Iterator[None]:
    """Turn a DIR that is missing or not a store into an error with its exit code."""
    from skylark.admin.errors import NotFoundError
    from skylark.core.errors import ConfigError
    from skylark.store.errors import StoreFileError, StoreFileMissingError
    from skylark.store.inspection.store_directory import NotAStoreError

    try:
        yield
    except StoreFileMissingError as error:
        if error.path != directory:
            raise
        raise NotFoundError(f"directory {directory} does not exist") from error
    except NotAStoreError as error:
        # The data folder of `skylark up` contains a store per broker.
        below = sorted(str(log.parent) for log in directory.glob("*/commitlog"))
        found = f"{directory} is not a store, but contains {', '.join(below)}"
        raise ConfigError(found if below else str(error)) from error
    except StoreFileError as error:
        if error.path == directory and directory.is_file():
            raise ConfigError(f"{directory} is a file, not a store directory") from error
        raise

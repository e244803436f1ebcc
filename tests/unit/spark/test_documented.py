"""The tables of docs/spark.md are those of the source: options, defaults, columns, jobs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from skylark.cli.job import JOBS
from skylark.cli.job import command as job_command
from skylark.cli.pipeline_commands import command as pipeline_command
from skylark.spark.option_table import Option
from skylark.spark.sink import sink_options
from skylark.spark.source import source_options as options
from skylark.spark.source.schema import ALL_TYPES, DEFAULT_TYPES

TEXT = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
#: Defaults that depend on something, or that are not kept as they are given.
IN_WORDS = {
    "nameServer": "from the environment",
    "commitGroupOffsets": "if `group` is given",
    "startingOffsets": "streams `latest`, batches `earliest`",
}


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the tables of a section, without their heads."""
    table = [line for line in section(title).splitlines() if line.startswith("| ")]
    cells = [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in table]
    return [row for row in cells if row[0].startswith("`")]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


TABLES: list[tuple[str, tuple[Option, ...], type[msgspec.Struct]]] = [
    ("Options of the source", options.OPTIONS, options.SourceOptions),
    ("Options of the sink", sink_options.OPTIONS, sink_options.SinkOptions),
]
#: Options whose value goes to a field together with that of another option.
FIELDS = {"endingOffsets": "end"}


@pytest.mark.parametrize(("title", "table", "struct"), TABLES, ids=lambda v: str(v)[:21])
def test_options(title: str, table: tuple[Option, ...], struct: type[msgspec.Struct]) -> None:
    found = rows(title)
    assert [codes(row[0]) for row in found] == [[option.name] for option in table]
    defaults = {field.name: field.default for field in msgspec.structs.fields(struct)}
    for option, (_, also, default, _) in zip(table, found, strict=True):
        assert tuple(codes(also)) == option.aliases, option.name
        if option.name in IN_WORDS:
            assert default == IN_WORDS[option.name]
            continue
        meant: Any = option.parse(codes(default)[0]) if codes(default) else None
        if (field := option.field or FIELDS.get(option.name)) is not None:
            assert meant == defaults[field], option.name
        assert default in ("", "none") or codes(default), option.name


def test_columns() -> None:
    described = {name: row[1] for row in rows("Columns") for name in codes(row[0])}
    assert described == {name: kind.simpleString() for name, kind in ALL_TYPES.items()}
    assert list(described) == list(ALL_TYPES)
    assert (len(DEFAULT_TYPES), "the first fourteen" in section("Columns")) == (14, True)


def test_jobs_and_commands_of_pipelines() -> None:
    described = {codes(row[0])[0]: codes(row[1])[0] for row in rows("Jobs")}
    assert sorted(described) == sorted(JOBS)
    for name, example in described.items():
        _, _, named, *arguments = shlex.split(example)
        assert named == name
        job = job_command.get_command(click.Context(job_command), name)
        assert job is not None
        job.make_context(name, arguments)  # raises if an option does not exist
    commands = {codes(row[0])[0].split()[0] for row in rows("Pipelines in a file")}
    assert commands == set(pipeline_command.commands)

"""``docs/reference/cli.md``: every command with its arguments and options, from the commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Final

import click

from skylark.cli.main import cli
from tools.reference.markdown import code, head, slug, table

_INTRODUCTION: Final = """
Every command of `skylark`; [the command line](../cli.md) introduces them, with examples that run.
Global options stand before the command: `skylark --log-level info topic list`. `--output` and `-n`
may also follow it: `skylark topic list --output json`.

```console
$ skylark --help
Usage: skylark [OPTIONS] COMMAND [ARGS]...
...
```
"""
_DEFAULT: Final = re.compile(r"\s*\[default: (.*)\]$")
_EXAMPLES: Final = re.compile(r"^Examples?:\s*", re.MULTILINE)


def page() -> str:
    """The whole page."""
    found = list(all_commands(cli, click.Context(cli, info_name="skylark", **cli.context_settings)))
    overview = (
        [f"[{path}](#{slug(path)})", _sentence(command)]
        for path, command, _ in found
        if not isinstance(command, click.Group)
    )
    parts = [
        head("Commands", _INTRODUCTION, written_from="the commands themselves"),
        table(["Command", ""], overview),
        *(_section(path, command, context) for path, command, context in found),
    ]
    return "\n".join(parts)


def all_commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """A command and all below it, each with its words and a context."""
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if not below.hidden:
                yield from all_commands(below, click.Context(below, context, info_name=name))


def _sentence(command: click.Command) -> str:
    return _prose(command.help or "").partition("\n")[0]


def _section(path: str, command: click.Command, context: click.Context) -> str:
    parts = [f"## {path}\n"]
    if text := _prose(command.help or ""):
        parts.append(f"{text}\n")
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts.append(f"```text\n{usage}\n```\n")
    rows = [
        _row(parameter, context)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    if rows:
        parts.append(table(["Option", "Value", "Default", "Meaning"], rows))
    if command.epilog:
        parts.append(_epilog(command.epilog))
    return "\n".join(parts)


def _row(option: click.Option, context: click.Context) -> list[str]:
    record = option.get_help_record(context)
    assert record is not None
    names = ", ".join(map(code, [*option.opts, *option.secondary_opts]))
    value = "" if option.is_flag or option.count else code(option.make_metavar(context))
    if isinstance(option.type, click.Choice) and option.metavar is None:
        value = ", ".join(map(code, option.type.choices))
    text, default = option.help or "", ""
    if match := _DEFAULT.search(text):
        text, default = text[: match.start()], match.group(1)
    elif "default" in option.get_help_extra(context):
        default = _default_text(option)
    if option.required:
        text = f"{text} Needed."
    return [names, value, default, _prose(text).replace("\n", " ")]


def _default_text(option: click.Option) -> str:
    if isinstance(option.default, bool) and option.secondary_opts:
        return code((option.opts if option.default else option.secondary_opts)[0])
    return code(str(option.default))


def _prose(text: str) -> str:
    """Help text as paragraphs; those that click does not wrap (``\\b``) as they stand."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if "\b" in paragraph:
            lines = textwrap.dedent(paragraph.partition("\b")[2]).strip().splitlines()
            paragraphs.append("\n".join(["```text", *map(str.rstrip, lines), "```"]))
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


def _epilog(text: str) -> str:
    """The end of a help text: its examples as they are typed, and what else it says."""
    if not _EXAMPLES.match(text.strip()):
        return f"{_prose(text)}\n"
    examples = " ".join(_EXAMPLES.sub("", text.strip()).split())
    lines = "\n".join(each.strip() for each in examples.split(";") if each.strip())
    return f"```text\n{lines}\n```\n"

"""Options that ``skylark broker`` and ``skylark namesrv`` share, named as in Java."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from skylark.core.config import Config

config_file_option = click.option(
    "-c",
    "--configFile",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings in Java's properties format; the server saves changes there.",
)
print_config_option = click.option(
    "-p",
    "--printConfigItem",
    "print_config",
    is_flag=True,
    help="Print all settings as key=value and exit.",
)


def show_settings(config: Config) -> None:
    """Print all settings in Java's properties format."""
    from skylark.core.config import to_properties

    click.echo(to_properties(config), nl=False)

"""What ``skylark broker`` and ``skylark namesrv`` share: the flags of Java, and what -p prints."""

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
    help="Settings in Java's properties format; changes at run time are saved there.",
)
print_config_option = click.option(
    "-p",
    "--printConfigItem",
    "print_config",
    is_flag=True,
    help="Print all settings as key=value and exit.",
)


def show_settings(config: Config) -> None:
    """Print all settings as a properties file has them."""
    from skylark.core.config import to_properties

    click.echo(to_properties(config), nl=False)

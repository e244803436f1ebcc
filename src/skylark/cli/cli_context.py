"""What the global options come to, handed to every command by ``@click.pass_obj``."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.cli import logging_setup as logs
from skylark.cli.output import Output


@dataclass(frozen=True)
class CliContext:
    """The settings of one run of ``skylark``."""

    output: Output
    log_level: str | None  # None: not chosen by the user
    log_format: logs.LogFormat
    debug: bool

    def configure_logging(self, default_level: str) -> None:
        """Set logging up; the user's ``--log-level`` wins over the command's ``default_level``."""
        logs.configure(self.log_level or default_level, self.log_format)

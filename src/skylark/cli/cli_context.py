"""The values of the global options; commands receive them by ``@click.pass_obj``."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.cli import logging_setup as logs
from skylark.cli.output import Output


@dataclass(frozen=True)
class CliContext:
    """The global options of one run of ``skylark``."""

    output: Output
    log_level: str | None  # None: the user did not give one
    log_format: logs.LogFormat
    debug: bool

    def configure_logging(self, default_level: str) -> None:
        """Set up logging; ``--log-level`` overrides the command's ``default_level``."""
        logs.configure(self.log_level or default_level, self.log_format)

"""The values of the global options, and the logging that they configure.

Commands receive the :class:`CliContext` by ``@click.pass_obj``. A ``skylark`` process logs to
stderr, as text lines or as one JSON object per line.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from skylark.cli.output import Output

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """One object per line: ``time`` (UTC), ``level``, ``logger``, ``message``, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, tz=UTC)
        entry = {
            "time": stamp.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(level: str, log_format: LogFormat) -> None:
    """Send everything at ``level`` and above to stderr, replacing what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


@dataclass
class CliContext:
    """The global options of one run of ``skylark``."""

    output: Output  # replaced if --output follows the command
    log_level: str | None  # None: the user did not give one
    log_format: LogFormat
    debug: bool

    def configure_logging(self, default_level: str) -> None:
        """Set up logging; ``--log-level`` overrides the command's ``default_level``."""
        configure(self.log_level or default_level, self.log_format)

"""Logging of a ``skylark`` process: to stderr, as text lines or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

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

"""State of the last run of a pipeline, in a file beside its checkpoints.

::

    <checkpoints>/<pipeline>/run.json    {"state": "restarting", "restarts": 2, "problem": "...}

``skylark pipeline run`` writes it when a pipeline starts, fails, starts again and ends, so that
``skylark pipeline status`` shows which of many pipelines has failed while the others run. Nothing
depends on it: it is not written where checkpoints are on a file system that only Spark can reach,
and a run that was killed leaves its last state. So the file names its process, and a state of a
process of this machine that is gone is shown as ``died``.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

RUN_FILE: Final = "run.json"
#: States of a run that has not ended.
_ACTIVE: Final = ("running", "restarting")


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """State of the last run of one pipeline."""

    state: str  #: running, restarting, done, stopped, failed; died: its process is gone
    restarts: int = 0
    problem: str | None = None  #: the last failure
    changed_ms: int = 0
    host: str = ""
    process_id: int = 0


def write_last_run(folder: Path, run: LastRun) -> None:
    """Write the state; a failure is logged and does no harm."""
    run = msgspec.structs.replace(run, host=socket.gethostname(), process_id=os.getpid())
    draft = folder / f".{RUN_FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(run))
        draft.replace(folder / RUN_FILE)
    except OSError as error:
        logger.warning("cannot write the state of a run to %s: %s", folder, error)


def read_last_run(folder: Path) -> LastRun | None:
    """The state of the last run; None if there is none."""
    try:
        run = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=LastRun)
    except (OSError, msgspec.MsgspecError):
        return None
    if run.state in _ACTIVE and run.host == socket.gethostname() and not _lives(run.process_id):
        return msgspec.structs.replace(run, state="died")
    return run


def _lives(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True

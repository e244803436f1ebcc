"""``skylark job``: data jobs on Spark, one module per job, imported when the command is called.

Spark takes seconds to start, so commands validate as much as possible before they start it.
"""

from __future__ import annotations

from typing import Final

import click

from skylark.cli.main import LazyCommand, LazyGroup

JOBS: Final = {
    "archive": LazyCommand(
        "skylark.cli.job.archive_commands:command", "Archive topics as files of a data lake."
    ),
    "compact": LazyCommand(
        "skylark.cli.job.compact_commands:command", "Keep only the latest message of each key."
    ),
    "mirror": LazyCommand(
        "skylark.cli.job.mirror_commands:command", "Copy a topic to another cluster."
    ),
    "redrive": LazyCommand(
        "skylark.cli.job.redrive_commands:command",
        "Send dead letters of a group again, without Spark.",
    ),
    "replay": LazyCommand(
        "skylark.cli.job.replay_commands:command", "Send archived messages to a topic again."
    ),
    "report": LazyCommand(
        "skylark.cli.job.report_commands:command", "Analyse a topic: rate, sizes, latency, keys."
    ),
    "transform": LazyCommand(
        "skylark.cli.job.transform_commands:command", "Transform a topic into another by SQL."
    ),
    "verify": LazyCommand(
        "skylark.cli.job.verify_commands:command", "Compare a topic with its archive."
    ),
}


@click.group("job", cls=LazyGroup, table=JOBS)
def command() -> None:
    """Run data jobs; most use Spark."""

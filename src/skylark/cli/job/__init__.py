"""``skylark job``: data jobs on Spark, one module per job, imported when it is called.

Spark takes seconds to start, so what a command can refuse without it, it refuses before.
"""

from __future__ import annotations

from typing import Final

import click

from skylark.cli.main import LazyCommand, LazyGroup

JOBS: Final = {
    "archive": LazyCommand("skylark.cli.job.archive_commands:command", "Keep topics in a lake."),
    "compact": LazyCommand(
        "skylark.cli.job.compact_commands:command", "Keep the latest row of each key."
    ),
    "mirror": LazyCommand(
        "skylark.cli.job.mirror_commands:command", "Copy a topic to another cluster."
    ),
    "redrive": LazyCommand(
        "skylark.cli.job.redrive_commands:command", "Send dead letters of a group again."
    ),
    "replay": LazyCommand(
        "skylark.cli.job.replay_commands:command", "Send messages of a lake again."
    ),
    "report": LazyCommand("skylark.cli.job.report_commands:command", "Show what a topic is like."),
    "transform": LazyCommand(
        "skylark.cli.job.transform_commands:command", "Make a topic of another by SQL."
    ),
    "verify": LazyCommand(
        "skylark.cli.job.verify_commands:command", "Compare a topic with its archive."
    ),
}


@click.group("job", cls=LazyGroup, table=JOBS)
def command() -> None:
    """Run data jobs on Spark."""

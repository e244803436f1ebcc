"""``skylark down``: stops a cluster that ``skylark up`` started, from any terminal.

Without ``--data`` it looks for the cluster on the user's data folder, and for clusters of
``skylark up --ephemeral --detach`` in the folder for temporary files; clusters that are not
detached are ignored there, since they can be stopped from their terminal. If several run, the
command lists them and stops none, unless ``--all`` is given.

The command signals only a process that holds the lock of its data folder
(:mod:`skylark.launch.data_folder_lock`). It sends SIGTERM, waits for the flush to disk, and never
kills. (The supervisor itself kills a broker process that has not stopped after 50 s.)
"""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import duration_s
from skylark.cli.exit_codes import ExitCode
from skylark.cli.up import user_data_folder

if TYPE_CHECKING:
    from skylark.launch.data_folder_lock import Supervisor

COLUMNS = ("data", "pid", "stopped", "seconds")
LOOK_INTERVAL_S = 0.02


@click.command("down", epilog="Example: skylark down --data ./data")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder of the cluster.  [default: the running one]",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Stop the cluster on the default data folder and all detached --ephemeral ones.",
)
@click.option("--timeout", metavar="TIME", default="60s", help="How long to wait.")
@click.pass_context
def command(ctx: click.Context, data: Path | None, every: bool, timeout: str) -> None:
    """Stop a cluster that skylark up started.

    Exit code 0 if it has stopped, 1 if it has not within the timeout, and 4 if none runs.
    """
    if data is not None and every:
        raise click.UsageError("--all finds the data folders: leave out --data")
    timeout_s = duration_s(timeout, "--timeout")
    context: CliContext = ctx.obj
    found = _find_in(data.absolute()) if data is not None else _find_all_or_raise()
    try:
        if len(found) > 1 and not every:
            shown = ", ".join(f"--data {each.data}" for each in found)
            raise click.UsageError(f"several clusters run: choose one ({shown}) or give --all")
        rows = asyncio.run(_stop_all(found, timeout_s))
    finally:
        for each in found:
            each.close()
    _show(context, rows)
    if not all(row["stopped"] for row in rows):
        ctx.exit(ExitCode.FAILED)


def _find_in(data: Path) -> list[Supervisor]:
    from skylark.admin.errors import NotFoundError
    from skylark.launch.data_folder_lock import Supervisor

    supervisor = Supervisor.find(data)
    if supervisor is None:
        raise NotFoundError(f"no skylark up runs on {data}")
    return [supervisor]


def _find_all_or_raise() -> list[Supervisor]:
    from skylark.admin.errors import NotFoundError

    found = find_all()
    if not found:
        raise NotFoundError(
            f"no skylark up runs on {user_data_folder().absolute()}, and none detached on a"
            " temporary folder: if it has another folder, give --data"
        )
    return found


def find_all(without: Path | None = None) -> list[Supervisor]:
    """Clusters on the user's data folder, and detached ones on temporary folders.

    ``without``: a folder that this process has locked, which a look into it could unlock.
    """
    import tempfile

    from skylark.core.errors import SkylarkError
    from skylark.launch.data_folder_lock import LOCK_NAME, Supervisor

    own = user_data_folder().absolute()
    found = [supervisor] if own != without and (supervisor := Supervisor.find(own)) else []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"skylark-*/{LOCK_NAME}")):
        if path.parent == without:
            continue
        with suppress(OSError, SkylarkError):  # unreadable, or not a data folder
            if not _is_own(path.parent):
                continue
            other = Supervisor.find(path.parent)
            if other is not None and other.detached:
                found.append(other)
            elif other is not None:
                other.close()
    return found


def _is_own(folder: Path) -> bool:
    """Whether the folder belongs to this user; in a shared folder others could make such names."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


async def _stop_all(found: list[Supervisor], timeout_s: float) -> list[dict[str, object]]:
    from skylark.core.clock import LoopClock

    clock = LoopClock()
    begun = clock.monotonic()
    for each in found:
        with suppress(PermissionError):  # its row then shows that it still runs
            each.terminate()
    rows: list[dict[str, object]] = []
    for each in found:
        while each.running and clock.monotonic() < begun + timeout_s:
            await clock.sleep(LOOK_INTERVAL_S)
        rows.append(
            {
                "data": each.data,
                "pid": each.pid,
                "stopped": not each.running,
                "seconds": round(clock.monotonic() - begun, 2),
            }
        )
    return rows


def _show(context: CliContext, rows: list[dict[str, object]]) -> None:
    if context.output.is_json:
        context.output.rows(COLUMNS, rows)
        return
    for row in rows:
        what = f"skylark up on {row['data']} (process {row['pid']})"
        if row["stopped"]:
            click.echo(f"{what} stopped after {row['seconds']} s")
        else:
            click.echo(
                f"Error: {what} still runs after {row['seconds']} s; it was not killed", err=True
            )

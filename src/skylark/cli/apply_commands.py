"""``skylark apply``: topics and groups from a YAML file.

::

    topics:
      - name: orders
        queues: 8
        perm: rw
        attributes: {message.type: FIFO}
      - name: old-orders
        absent: true
    groups:
      - name: billing
        retry_max_times: 5

Topics and groups that the file does not name are not changed (:mod:`skylark.admin.apply`). The
command prints the differences first. Before the first change it writes an undo file, which is
itself a file for ``skylark apply``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import call_admin, confirm, namesrv_option, yes_option

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.apply import Change, Desired, Plan

COLUMNS = ("action", "kind", "name", "broker", "field", "old", "new")
UNDO_FILES_MAX = 1_000


@click.command("apply", epilog="Example: skylark apply cluster.yaml --plan")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@namesrv_option
@click.option("--plan", "plan_only", is_flag=True, help="Only show the differences.")
@click.option(
    "--undo",
    "undo_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Undo file to write.  [default: NAME.undo.yaml next to FILE]",
)
@yes_option
@click.pass_obj
def command(
    context: CliContext,
    file: Path,
    plan_only: bool,
    undo_file: Path | None,
    yes: bool,
) -> None:
    """Create, change and delete topics and groups as a YAML file describes them.

    Shows the differences, writes an undo file, and applies the changes. Asks for confirmation
    before it deletes anything. Exits with 0 if there is nothing to change.
    """
    desired = _read(file)

    async def plan_for(admin: Admin) -> Plan:
        from skylark.admin.apply import make_plan

        return await make_plan(admin, desired)

    plan = call_admin(plan_for)
    context.output.rows(COLUMNS, [row for change in plan.changes for row in _rows(change)])
    if not plan.changes:
        context.output.info("nothing to change")
        return
    if plan_only:
        return
    if plan.deletes:
        names = ", ".join(f"{change.kind} {change.name}" for change in plan.deletes)
        confirm(f"Delete {names} permanently?", yes=yes)
    written = _write_undo(
        undo_file or _unused_undo_file(file), file, plan, may_replace=undo_file is not None
    )
    context.output.info(f"undo file: {written}")

    done: list[Change] = []

    async def carry_out(admin: Admin) -> None:
        from skylark.admin.apply import apply_plan

        await apply_plan(admin, plan, done.append)

    try:
        call_admin(carry_out)
    finally:
        context.output.info(f"{len(done)} of {len(plan.changes)} changes applied")


def _read(file: Path) -> Desired:
    from skylark.admin.apply import Desired, check
    from skylark.core.errors import InvalidParameterError
    from skylark.core.strict_yaml import YamlError, read_yaml

    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise YamlError(str(file), "not UTF-8 text") from None
    desired = read_yaml(text, Desired, file=str(file))
    try:
        check(desired)
    except InvalidParameterError as error:
        raise YamlError(str(file), error.message) from None
    return desired


def _rows(change: Change) -> Sequence[dict[str, object]]:
    about: dict[str, object] = {
        "action": change.action,
        "kind": change.kind,
        "name": change.name,
        "broker": change.broker,
    }
    if not change.fields:
        return [about]
    return [
        {**about, "field": field.field, "old": field.old, "new": field.new}
        for field in change.fields
    ]


def _unused_undo_file(file: Path) -> Path:
    """An unused file name next to ``file``; the command never overwrites an undo file."""
    name = re.sub(
        r"\.undo(-\d+)?$", "", file.stem
    )  # applying NAME.undo.yaml writes NAME.undo-2.yaml
    for number in range(1, UNDO_FILES_MAX):
        suffix = "" if number == 1 else f"-{number}"
        found = file.with_name(f"{name}.undo{suffix}.yaml")
        if not found.exists():
            return found
    raise click.ClickException(f"{file} has {UNDO_FILES_MAX} undo files: remove some")


def _write_undo(path: Path, file: Path, plan: Plan, *, may_replace: bool) -> Path:
    import msgspec

    from skylark.core.strict_yaml import write_yaml

    lines = [f"# Undoes what was applied from {file.name}.", *(f"# {text}." for text in plan.stays)]
    text = write_yaml(msgspec.to_builtins(plan.undo))
    with path.open("w" if may_replace else "x", encoding="utf-8") as target:
        target.write("\n".join(lines) + f"\n{text}")
    return path

"""What commands that ask a cluster share: the admin client, times, confirmation, names to complete.

A command hands :func:`ask` a function of the :class:`~skylark.admin.admin_client.Admin` and gets
its result; connections are closed before it returns. Whatever goes wrong is raised, and becomes a
sentence and an exit code in ``main.py``.

**Times** on the command line are local unless they say otherwise: ``2026-11-01T08:00``,
``2026-11-01T08:00+01:00``, a date alone, or so long ago: ``30m`` (:func:`moment`).

**Completion.** TOPIC and GROUP arguments complete from the cluster that ``-n`` or the environment
names, if it answers within :data:`COMPLETION_S`; a shell that waits would be worse than one that
knows nothing. No error may escape there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from skylark.cli.cli_context import CliContext

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.errors import ServerFailure

T = TypeVar("T")

COMPLETION_S = 0.3
OFFSET_DIGITS_MAX = 18
_ENDS: dict[str, Literal["earliest", "latest"]] = {
    "earliest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "end": "latest",
}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def ask(
    namesrv: str | None,
    question: Callable[[Admin], Awaitable[T]],
    *,
    timeout_s: float | None = None,
) -> T:
    """What ``question`` makes of an admin client of the cluster that ``-n`` names.

    ``timeout_s``: what each request gets.
    """
    import asyncio

    from skylark.admin.admin_client import Admin
    from skylark.admin.admin_session import TIMEOUT_S
    from skylark.cli.name_server_option import client_options

    async def run() -> T:
        async with Admin(client_options(namesrv), timeout=timeout_s or TIMEOUT_S) as admin:
            return await question(admin)

    return asyncio.run(run())


def note_failures(context: CliContext, failures: Iterable[ServerFailure]) -> None:
    """Say which servers did not answer; what the others said is shown nevertheless.

    Programs are told as well: what they got is not all.
    """
    for failure in failures:
        context.output.warn(f"{failure.server} at {failure.address}: {failure.problem}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person, unless ``--yes`` was given; ends the command if the answer is no."""
    if not yes:
        click.confirm(question, abort=True, err=True)


def plain(value: Any) -> Any:
    """A result as plain values for output: structs as objects with the names that Python has."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


# ---- options -------------------------------------------------------------------------------------

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def key_value(text: str, option: str) -> tuple[str, str]:
    """``KEY=VALUE``, both as they are."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
    return key.strip(), value


def moment(text: str, option: str) -> datetime:
    """A time of the command line; see the module."""
    found = _time(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-11-01T08:00, or so long ago, such as 30m",
            param_hint=option,
        )
    return found


def place(text: str, option: str) -> Literal["earliest", "latest"] | datetime | int:
    """Where in a queue: one of its ends, a time or an offset."""
    if text in _ENDS:
        return _ENDS[text]
    if text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX:
        return int(text)
    found = _time(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, a time such as 2026-11-01T08:00, or an offset",
            param_hint=option,
        )
    return found


def _time(text: str) -> datetime | None:
    from skylark.core.clock import SystemClock

    try:
        if (ago_s := _seconds(text)) is not None:
            now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=UTC)
            return now - timedelta(seconds=ago_s)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        return None


def duration_s(text: str, option: str) -> float:
    """``500ms``, ``10s``, ``5m``, ``2h``, ``1d`` in seconds; a number alone is seconds."""
    found = _seconds(text, "s")
    if found is None:
        raise click.BadParameter(f"{text!r} is not a time such as 10s or 5m", param_hint=option)
    return found


def _seconds(text: str, unit: str | None = None) -> float | None:
    """A duration in seconds; ``unit`` is that of a number alone, which else is none."""
    import re

    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)?", text, re.ASCII)
    if found is None or (found[2] or unit) is None:
        return None
    return float(found[1]) * _UNITS_S[found[2] or unit or ""]


def shown_time(time_ms: int | None) -> str | None:
    """Milliseconds since 1970 as a local time with its offset, for output."""
    if time_ms is None:
        return None
    return (
        datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone().isoformat("T", "milliseconds")
    )


# ---- completion ----------------------------------------------------------------------------------


def complete_topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Topics of the cluster that begin so; none if it does not answer at once."""
    return _complete(ctx, incomplete, lambda admin: admin.topics.names())


def complete_groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups of the cluster that begin so; none if it does not answer at once."""

    async def names(admin: Admin) -> list[str]:
        return [group.group for group in (await admin.groups.all()).groups]

    return _complete(ctx, incomplete, names)


def _complete(
    ctx: click.Context, incomplete: str, names: Callable[[Admin], Awaitable[list[str]]]
) -> list[str]:
    import logging

    from skylark.core.clock import LoopClock
    from skylark.core.errors import SkylarkError

    logging.disable(logging.CRITICAL)  # nothing may be written into the line that is completed

    async def within_time(admin: Admin) -> list[str]:
        return await LoopClock().wait_for(names(admin), COMPLETION_S)

    try:
        found = ask(ctx.params.get("namesrv"), within_time, timeout_s=COMPLETION_S)
    except (SkylarkError, OSError, TimeoutError):
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [name for name in found if name.startswith(incomplete)]


topic_argument = click.argument("topic", shell_complete=complete_topics)
group_argument = click.argument("group", shell_complete=complete_groups)

"""Helpers of commands that use a cluster: ``-n``, admin calls, times, confirmation, completion.

A command passes :func:`call_admin` a function of the :class:`~skylark.admin.admin_client.Admin` and
gets its result; connections are closed before it returns. Errors are raised; ``main.py`` turns them
into a message and an exit code.

**Name servers** come from ``-n``, else from the environment, else there is one on this machine
(:func:`skylark.core.names.resolve_namesrv`).

**Times** on the command line are local unless they have an offset: ``2026-11-01T08:00``,
``2026-11-01T08:00+01:00``, a date alone, or a duration before now: ``30m`` (:func:`parse_time`).

**Completion.** TOPIC and GROUP arguments complete from the cluster that ``-n`` or the environment
names, if it responds within :data:`COMPLETION_S`; otherwise there are no completions, because a
shell that hangs would be worse. Completion never raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from skylark.cli.cli_context import CliContext

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from skylark.admin.admin_client import Admin
    from skylark.admin.errors import ServerFailure
    from skylark.client.core.client_options import ClientOptions


T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

COMPLETION_S = 0.3
_NAMESRV = f"{__name__}.namesrv"
OFFSET_DIGITS_MAX = 18
_ENDS: dict[str, Literal["earliest", "latest"]] = {
    "earliest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "end": "latest",
}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def call_admin(operation: Callable[[Admin], Awaitable[T]], *, timeout_s: float | None = None) -> T:
    """Call ``operation`` with an admin client of the cluster that ``-n`` names; returns its result.

    ``timeout_s``: timeout of each request.
    """
    import asyncio

    from skylark.admin.admin_client import Admin
    from skylark.admin.admin_session import TIMEOUT_S

    options = client_options(given_namesrv())

    async def run() -> T:
        async with Admin(options, timeout=timeout_s or TIMEOUT_S) as admin:
            return await operation(admin)

    return asyncio.run(run())


def warn_about_failures(context: CliContext, failures: Iterable[ServerFailure]) -> None:
    """Warn about servers that did not respond; the results of the others are shown anyway.

    The warning is also printed with JSON output, because the result is incomplete.
    """
    for failure in failures:
        context.output.warn(f"{failure.server} at {failure.address}: {failure.problem}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless ``--yes`` was given; aborts the command if the answer is no."""
    if not yes:
        click.confirm(question, abort=True, err=True)


# ---- options -------------------------------------------------------------------------------------


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """A decorator that adds several options and arguments, in this order."""

    def decorate(decorated: Decorated) -> Decorated:
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return decorated

    return decorate


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def key_value(text: str, option: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
    return key.strip(), value


def parse_time(text: str, option: str) -> datetime:
    """Parse a time of the command line; see the module docstring."""
    found = _time(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is neither a time such as 2026-11-01T08:00 nor a duration ago such as 30m",
            param_hint=option,
        )
    return found


def parse_position(text: str, option: str) -> Literal["earliest", "latest"] | datetime | int:
    """Parse a position in a queue: one of its ends, a time or an offset."""
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
    """Parse a duration; None if it is not valid. ``unit`` is the unit of a bare number."""
    import re

    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)?", text, re.ASCII)
    if found is None or (found[2] or unit) is None:
        return None
    return float(found[1]) * _UNITS_S[found[2] or unit or ""]


def format_time(time_ms: int | None) -> str | None:
    """Milliseconds since 1970 as a local time with its offset, for output."""
    if time_ms is None:
        return None
    return (
        datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone().isoformat("T", "milliseconds")
    )


# ---- names, with completion ----------------------------------------------------------------------


async def _topics(admin: Admin) -> list[str]:
    return await admin.topics.names()


async def _groups(admin: Admin) -> list[str]:
    return [group.group for group in (await admin.groups.all()).groups]


class NameType(click.types.StringParamType):
    """A name of a topic or group: refused if it cannot be one, completed from the cluster."""

    def __init__(self, problem: str, known: Callable[[Admin], Awaitable[list[str]]]) -> None:
        """``problem``: the function of :mod:`skylark.core.names` that checks a name."""
        self._problem = problem
        self._known = known

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from skylark.core import names

        if problem := getattr(names, self._problem)(value):
            self.fail(problem, param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names with this prefix; none if the cluster does not respond at once."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in _complete(ctx, incomplete, self._known)]


TOPIC = NameType("topic_problem", _topics)
GROUP = NameType("group_problem", _groups)


def _complete(
    ctx: click.Context, incomplete: str, names: Callable[[Admin], Awaitable[list[str]]]
) -> list[str]:
    import logging

    from skylark.core.clock import LoopClock
    from skylark.core.errors import SkylarkError

    logging.disable(logging.CRITICAL)  # log lines would garble the line that is completed

    async def within_time(admin: Admin) -> list[str]:
        return await LoopClock().wait_for(names(admin), COMPLETION_S)

    try:
        with ctx.scope(cleanup=False):
            found = call_admin(within_time, timeout_s=COMPLETION_S)
    except (SkylarkError, OSError, TimeoutError):
        return []
    finally:
        logging.disable(logging.NOTSET)
    return [name for name in found if name.startswith(incomplete)]


topic_argument = click.argument("topic", type=TOPIC)
group_argument = click.argument("group", type=GROUP)


def _keep_namesrv(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_NAMESRV] = value


#: Adds ``-n``; commands get its value by :func:`given_namesrv`, not as a parameter.
namesrv_option = click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT[;...]",
    expose_value=False,
    callback=_keep_namesrv,
    help="Name servers.  [default: $SKYLARK_NAMESRV, $NAMESRV_ADDR,"
    " $ROCKETMQ_NAMESRV_ADDR, else 127.0.0.1:9876]",
)


def given_namesrv(ctx: click.Context | None = None) -> str | None:
    """The last ``-n`` of the running command, or of ``ctx``."""
    return (ctx or click.get_current_context()).meta.get(_NAMESRV)


def client_options(argument: str | None) -> ClientOptions:
    """Client options for the cluster that ``-n`` names: addresses, or a URL with further options.

    Raises ConfigError if it is neither.
    """
    import os

    from skylark.client.core.client_options import ClientOptions
    from skylark.core.names import LOCAL_NAMESRV, resolve_namesrv

    found = resolve_namesrv(argument, os.environ, default=LOCAL_NAMESRV)
    sources = {"argument": argument, "default": LOCAL_NAMESRV}
    namesrv = sources.get(found.source) or os.environ[found.source]
    return ClientOptions(namesrv=namesrv, start_timeout=0)  # a user sees at once what is wrong

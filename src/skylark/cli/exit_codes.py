"""Exit codes of ``skylark``, and the mapping from exceptions to them.

======  ===========  ====================================================================
code    name         meaning
======  ===========  ====================================================================
0       OK           done
1       FAILED       the command ran and failed
2       USAGE        the command line or a setting is wrong; click uses the same code
3       UNREACHABLE  no server responded
4       NOT_FOUND    the topic, group or message does not exist
130     INTERRUPTED  Ctrl-C, as shells report it
======  ===========  ====================================================================

Users see a message of one line, never a traceback (:func:`error_message`). Commands that use a
client add what to do at the shell (:func:`translated_errors`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

_SUBSCRIPTION_PARSE_FAILED = 23  # the response code of a broker


class ExitCode(IntEnum):
    """The exit code of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


class UnreachableError(click.ClickException):
    """No server responds."""

    exit_code = ExitCode.UNREACHABLE


def exit_code(error: Exception) -> ExitCode:
    """The exit code for an error that ended a command."""
    from skylark.admin.errors import NotFoundError
    from skylark.core import errors
    from skylark.core.names import IllegalNameError

    # The first row that matches decides.
    table: tuple[tuple[type[Exception], ExitCode], ...] = (
        (errors.ConfigError, ExitCode.USAGE),
        (errors.InvalidParameterError, ExitCode.USAGE),  # an invalid name or number
        (IllegalNameError, ExitCode.USAGE),
        (errors.SendTimeoutError, ExitCode.UNREACHABLE),
        (
            errors.TooManyRequestsError,
            ExitCode.FAILED,
        ),  # refused by this client, not by the network
        (errors.TransportError, ExitCode.UNREACHABLE),
        (NotFoundError, ExitCode.NOT_FOUND),
        (errors.TopicNotExistError, ExitCode.NOT_FOUND),
        (errors.QueryNotFoundError, ExitCode.NOT_FOUND),
        (errors.SubscriptionGroupNotExistError, ExitCode.NOT_FOUND),
        (errors.NoNameServerError, ExitCode.UNREACHABLE),
        (errors.NoRouteError, ExitCode.NOT_FOUND),
        (errors.RequestReplyTimeoutError, ExitCode.UNREACHABLE),
    )
    if isinstance(error, errors.BrokerError) and error.code == _SUBSCRIPTION_PARSE_FAILED:
        return ExitCode.USAGE  # --tags or --sql
    for kind, code in table:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


def error_message(error: Exception) -> str:
    """The message of an error, in one line."""
    from skylark.core.errors import BrokerError, SkylarkError

    message = str(error)
    if isinstance(error, BrokerError) and error.broker_address is not None:
        # str(error) has the format of Java's client, which people search logs for; too long here.
        hint = f": {error.hint}" if error.hint else ""
        message = f"{error.remark} (reported by {error.broker_address}){hint}"
    text = " ".join(message.split())
    if isinstance(error, SkylarkError | OSError):
        return text or type(error).__name__
    return f"internal error, please report it: {type(error).__name__}: {text} (see --debug)"


@contextmanager
def translated_errors(topic: str) -> Iterator[None]:
    """Turn errors of clients into CLI errors: with exit code, and what to do at the shell."""
    from skylark.admin.errors import NotFoundError
    from skylark.core.errors import (
        NoNameServerError,
        NoRouteError,
        SendFailedError,
        TransportError,
    )

    try:
        yield
    except NoNameServerError as error:
        raise UnreachableError(
            f"{error.message}: start one with skylark up, or give its address with -n HOST:PORT"
        ) from error
    except NoRouteError as error:
        raise NotFoundError(
            f"topic {topic} does not exist, or none of its brokers runs:"
            f" create it with skylark topic create {topic}"
        ) from error
    except SendFailedError as error:
        if isinstance(error.__cause__, TransportError):
            raise UnreachableError(str(error)) from error
        raise

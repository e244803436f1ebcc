"""Exit codes of ``skylark``, and the one place where an exception becomes one.

======  ===========  ====================================================================
code    name         meaning
======  ===========  ====================================================================
0       OK           done
1       FAILED       the command ran and failed
2       USAGE        the command line or a setting is wrong; click uses the same code
3       UNREACHABLE  no server answered
4       NOT_FOUND    the topic, group or message does not exist
130     INTERRUPTED  the interrupt key, as shells report it
======  ===========  ====================================================================

A user sees one sentence, never a traceback: :func:`sentence`. Commands that act as a client say in
it what to do at the shell: :func:`explained`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click


class ExitCode(IntEnum):
    """What the process returns to its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


class UnreachableError(click.ClickException):
    """Nobody answers."""

    exit_code = ExitCode.UNREACHABLE


class TopicMissingError(click.ClickException):
    """There is no such topic."""

    exit_code = ExitCode.NOT_FOUND


def exit_code(error: Exception) -> ExitCode:
    """The code for an error that ended a command."""
    from skylark.admin.errors import NotFoundError
    from skylark.core import errors
    from skylark.core.names import IllegalNameError

    # The first row that matches decides.
    table: tuple[tuple[type[Exception], ExitCode], ...] = (
        (errors.ConfigError, ExitCode.USAGE),
        (errors.InvalidParameterError, ExitCode.USAGE),  # a name or number that cannot be
        (IllegalNameError, ExitCode.USAGE),
        (errors.SendTimeoutError, ExitCode.UNREACHABLE),
        (errors.TooManyRequestsError, ExitCode.FAILED),  # refused by ourselves, not by the network
        (errors.TransportError, ExitCode.UNREACHABLE),
        (NotFoundError, ExitCode.NOT_FOUND),
        (errors.TopicNotExistError, ExitCode.NOT_FOUND),
        (errors.QueryNotFoundError, ExitCode.NOT_FOUND),
        (errors.SubscriptionGroupNotExistError, ExitCode.NOT_FOUND),
        (errors.NoNameServerError, ExitCode.UNREACHABLE),
        (errors.NoRouteError, ExitCode.NOT_FOUND),
        (errors.RequestReplyTimeoutError, ExitCode.UNREACHABLE),
    )
    for kind, code in table:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


def sentence(error: Exception) -> str:
    """One line for a person."""
    from skylark.core.errors import BrokerError, SkylarkError

    said = str(error)
    if isinstance(error, BrokerError) and error.broker_address is not None:
        # The text of the error is that of Java's client, for logs that are searched for it.
        hint = f": {error.hint}" if error.hint else ""
        said = f"{error.remark} (said by {error.broker_address}){hint}"
    text = " ".join(said.split())
    if isinstance(error, SkylarkError | OSError):
        return text or type(error).__name__
    return f"internal error, please report it: {type(error).__name__}: {text} (see --debug)"


@contextmanager
def explained(topic: str) -> Iterator[None]:
    """Give errors of clients their exit code, and say what to do about them at the shell."""
    from skylark.core.errors import (
        NoNameServerError,
        NoRouteError,
        SendFailedError,
        TransportError,
    )

    try:
        yield
    except NoNameServerError as error:
        then = " Start" if error.message.endswith("?") else "; start"
        raise UnreachableError(
            f"{error.message}{then} one with skylark up, or say where it is with -n HOST:PORT"
        ) from error
    except NoRouteError as error:
        raise TopicMissingError(
            f"there is no topic {topic}, or none of its brokers runs:"
            f" create it with skylark topic create {topic}"
        ) from error
    except SendFailedError as error:
        if isinstance(error.__cause__, TransportError):
            raise UnreachableError(str(error)) from error
        raise

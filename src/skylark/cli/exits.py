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

A user sees one sentence, never a traceback: :func:`sentence`.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns to its caller."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


def exit_code(error: Exception) -> ExitCode:
    """The code for an error that ended a command."""
    from skylark.core import errors

    # The first row that matches decides.
    table: tuple[tuple[type[Exception], ExitCode], ...] = (
        (errors.ConfigError, ExitCode.USAGE),
        (errors.TooManyRequestsError, ExitCode.FAILED),  # refused by ourselves, not by the network
        (errors.TransportError, ExitCode.UNREACHABLE),
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
    from skylark.core.errors import SkylarkError

    text = " ".join(str(error).split())
    if isinstance(error, SkylarkError | OSError):
        return text or type(error).__name__
    return f"internal error, please report it: {type(error).__name__}: {text} (see --debug)"

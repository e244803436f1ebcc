"""Errors of blocking clients about servers that cannot be reached, without the client's own frames.

Such an error is about an address or a server, not about code: what helps is the line of the
application and the message. The frames below it and the errors that led to it (fifty lines of the
client, the network and the loop) go to the log at debug level. The cause of a SendFailedError
stays where it says more than the error, because it tells what the last attempt met; its own frames
go too.
"""

from __future__ import annotations

import logging
from typing import Final, TypeVar

from skylark.core.errors import (
    ConfigError,
    NoNameServerError,
    NoRouteError,
    SendFailedError,
    SkylarkError,
    TransportError,
)

ErrorT = TypeVar("ErrorT", bound=SkylarkError)

logger = logging.getLogger(__name__)

#: Errors about servers, their addresses and settings.
ABOUT_SERVERS: Final = (
    ConfigError, NoNameServerError, NoRouteError, SendFailedError, TransportError,
)  # fmt: skip


def without_frames(error: ErrorT) -> ErrorT:
    """The same error without frames, and with a cause only if that tells more than its message.

    To be raised at once: ``raise without_frames(error) from error.__cause__``.
    """
    logger.debug("a call failed: %s", error, exc_info=error)
    cause = error.__cause__
    if isinstance(error, SendFailedError) and cause is not None and str(cause) not in str(error):
        cause.__cause__ = None
        cause.__suppress_context__ = True
        cause.__traceback__ = None
    elif not isinstance(error, ConfigError):
        cause = None
    error.__cause__ = cause  # sets __suppress_context__
    return error.with_traceback(None)

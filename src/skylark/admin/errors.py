"""What goes wrong in administration and nowhere else.

Something that does not exist is a :class:`NotFoundError`, whatever way the servers put it: code 17,
22 or 26, or an empty answer. A change that some servers took and others refused is a
:class:`PartialFailureError` that says who did what; a question that only some answered is no error,
but its result lists who did not (``failures``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from skylark.core.errors import ClientError, TransportError


class NotFoundError(ClientError):
    """The topic, group, message, broker or setting does not exist."""


class NoBrokerError(TransportError):
    """No broker that could do what was asked has registered with the name server."""


class ServerFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A server that did not do what was asked, and why."""

    server: str  #: the broker's name, or the address of a name server
    address: str
    problem: str
    retriable: bool = False


class PartialFailureError(ClientError):
    """Not all servers did what was asked; ``results`` are those of the ones that did."""

    def __init__(self, failures: Sequence[ServerFailure], results: Sequence[Any] = ()) -> None:
        self.failures = tuple(failures)
        self.results = tuple(results)
        total = len(self.failures) + len(self.results)
        problems = "; ".join(f"{failure.server}: {failure.problem}" for failure in self.failures)
        super().__init__(f"{len(self.failures)} of {total} servers failed: {problems}")

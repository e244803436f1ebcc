"""Errors of administration.

:class:`NotFoundError` stands for all ways in which servers report that something does not exist:
codes 17, 22 and 26, or an empty response. :class:`PartialFailureError` means that some servers
applied a change and others did not; it has both. A query that only some servers answered is not an
error; its result lists the others (``failures``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from skylark.core.errors import ClientError, TransportError


class NotFoundError(ClientError):
    """The topic, group, message, broker or setting does not exist."""


class NoBrokerError(TransportError):
    """No suitable broker has registered with the name server."""


class ServerFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A server that failed, and why."""

    server: str  #: the broker's name, or the address of a name server
    address: str
    problem: str
    retriable: bool = False


class PartialFailureError(ClientError):
    """Some servers failed; ``results`` are those of the others."""

    def __init__(self, failures: Sequence[ServerFailure], results: Sequence[Any] = ()) -> None:
        self.failures = tuple(failures)
        self.results = tuple(results)
        total = len(self.failures) + len(self.results)
        problems = "; ".join(f"{failure.server}: {failure.problem}" for failure in self.failures)
        super().__init__(f"{len(self.failures)} of {total} servers failed: {problems}")

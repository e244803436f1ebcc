"""Calls the interceptors of the services for requests of the remoting endpoint.

An interceptor of :mod:`skylark.broker.api` sees peer, operation and resources, no frames. This
adapter is an interceptor of :mod:`skylark.net.dispatch`: it takes the name of the operation and the
ext fields that name topics and groups from the catalogue (``Row.access``). Resources that only the
body names (a heartbeat's groups) are not among them.

It must be the first interceptor of a dispatcher: then each request that it admits, and no other,
is reported as finished, with the code that the client gets. A broker without such interceptors
does not have the adapter, and its requests pay nothing for it.
"""

from __future__ import annotations

from typing import NamedTuple

from skylark.broker.api import BrokerServices, Operation, Resource
from skylark.net.connection import Connection
from skylark.wire.catalogue import CATALOGUE, name_of
from skylark.wire.command import Command
from skylark.wire.rows.catalogue_row import Row


class _Source(NamedTuple):
    """Where a request names a resource."""

    kind: str
    field: str | None  # the cluster has none
    separator: str | None


def _sources(row: Row) -> tuple[_Source, ...]:
    return tuple(
        _Source(each.resource.lower(), each.field, each.separator)
        for each in row.access
        if each.field is not None or each.resource == "Cluster"
    )


_OPERATIONS = {code: Operation(name=row.name, code=code) for code, row in CATALOGUE.items()}
_SOURCES = {code: _sources(row) for code, row in CATALOGUE.items()}


class RemotingInterception:
    """Has each request admitted before it is handled, and reports how it ended."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services

    def before(self, connection: Connection, request: Command) -> None:
        """Raises BrokerError if an interceptor refuses the request."""
        self._services.admit(connection, operation_of(request.code), resources_of(request))

    def after(
        self, connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        code = None if response is None else response.code
        self._services.finished(connection, operation_of(request.code), code)
        return response


def operation_of(code: int) -> Operation:
    """What a request of this code wants."""
    found = _OPERATIONS.get(code)
    return Operation(name=name_of(code), code=code) if found is None else found


def resources_of(request: Command) -> list[Resource]:
    """What a request is about, as far as its header says so."""
    resources = []
    for kind, field, separator in _SOURCES.get(request.code, ()):
        if field is None:
            resources.append(Resource(kind, ""))
        elif text := (request.ext or {}).get(field):
            names = [text] if separator is None else text.split(separator)
            resources += [Resource(kind, name) for name in names]
    return resources

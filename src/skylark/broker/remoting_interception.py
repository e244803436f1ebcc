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

from collections.abc import Iterator

from skylark.broker.api import BrokerServices, Operation, Resource
from skylark.net.connection import Connection
from skylark.wire.catalogue import CATALOGUE, name_of
from skylark.wire.command import Command
from skylark.wire.rows.catalogue_row import Access


class RemotingInterception:
    """Has each request admitted before it is handled, and reports how it ended."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._operations = {
            code: Operation(name=row.name, code=code) for code, row in CATALOGUE.items()
        }

    def before(self, connection: Connection, request: Command) -> None:
        """Raises BrokerError if an interceptor refuses the request."""
        self._services.admit(connection, self._operation(request.code), resources_of(request))

    def after(
        self, connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        code = None if response is None else response.code
        self._services.finished(connection, self._operation(request.code), code)
        return response

    def _operation(self, code: int) -> Operation:
        found = self._operations.get(code)
        return Operation(name=name_of(code), code=code) if found is None else found


def resources_of(request: Command) -> list[Resource]:
    """What a request is about, as far as its header says so."""
    row = CATALOGUE.get(request.code)
    return [] if row is None else [each for entry in row.access for each in _named(entry, request)]


def _named(access: Access, request: Command) -> Iterator[Resource]:
    kind = access.resource.lower()
    if access.resource == "Cluster":
        yield Resource(kind, "")
        return
    text = None if access.field is None else (request.ext or {}).get(access.field)
    if text:
        for name in text.split(access.separator) if access.separator else [text]:
            yield Resource(kind, name)

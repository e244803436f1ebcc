"""Calls the interceptors of the broker for remoting requests that no service handles.

The services call the interceptors for their own operations
(:mod:`skylark.broker.service_interception`). This adapter is an interceptor of
:mod:`skylark.net.dispatch`, for the other request codes: what administrators, tools and slaves ask.
It takes the name of the operation and the ext fields that name topics and groups from the catalogue
(``Row.access``); where the body names them, :data:`IN_BODY` finds them. A body that cannot be read
is refused as by its handler.

It must be the first interceptor of a dispatcher: then it reports each request that it has admitted,
and no other, as finished, with the code that the client gets. A broker without interceptors does
not have the adapter, and its requests pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from skylark.broker.api import Call, InterceptorChain, Operation, Resource
from skylark.broker.service_interception import INTERCEPTED_CODES
from skylark.net.connection import Connection
from skylark.wire.catalogue import CATALOGUE, name_of
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body


def _topic_and_group(body: Any) -> list[Resource]:
    return [Resource("topic", body.topic), Resource("group", body.consumer_group)]


#: Finds the resources in a body, which has the type that the catalogue says.
IN_BODY: Final[dict[int, Callable[[Any], list[Resource]]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda body: [
        Resource("topic", each.topic_name) for each in body.topic_config_list
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda body: [
        Resource("group", body.group_name)
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda body: [
        Resource("group", each.group_name) for each in body.group_config_list
    ],
    RequestCode.QUERY_ASSIGNMENT: _topic_and_group,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _topic_and_group,
}


class RemotingInterception:
    """Has each request admitted before it is handled, and reports how it ended."""

    def __init__(self, interceptors: InterceptorChain) -> None:
        self._interceptors = interceptors
        self._calls: dict[int, Call] = {}  # by the identity of the request

    def before(self, connection: Connection, request: Command) -> None:
        """Raises BrokerError if an interceptor refuses the request."""
        if request.code in INTERCEPTED_CODES:
            return
        call = Call(connection, operation_of(request.code), resources_of(request))
        self._interceptors.admit(call)
        self._calls[id(request)] = call

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        call = self._calls.pop(id(request), None)
        if call is not None:
            self._interceptors.finish(call, None if response is None else response.code)
        return response


def operation_of(code: int) -> Operation:
    """The operation of a request code that no service handles."""
    return Operation(name=name_of(code), code=code)


def resources_of(request: Command) -> list[Resource]:
    """The resources that a request names; raises RemoteProtocolError."""
    row = CATALOGUE.get(request.code)
    resources: list[Resource] = []
    for access in () if row is None else row.access:
        if access.resource == "Cluster":
            resources.append(Resource("cluster", ""))
        elif access.field and (text := (request.ext or {}).get(access.field)):
            names = [text] if access.separator is None else text.split(access.separator)
            resources += [Resource(access.resource.lower(), name) for name in names]
    if row is not None and (find := IN_BODY.get(request.code)) is not None:
        assert row.request_body_type is not None, "the body names resources"
        resources += find(decode_body(row.request_body_type, request.body or b""))
    return resources
